//! The synthetic fleet: chains that every target holds, and conversations that go on from them on two targets.

use domain::SequenceHash;

use crate::event::{Block, Change, Event, Naming, Request, extend};
use crate::random::{Random, mix};

/// Blocks of one event while a prompt is computed.
const PREFILL_BLOCKS: usize = 128;
/// One in so many private blocks is filled by decoding: an event of its own.
const DECODED_PART: usize = 8;
/// Chains and conversations that advance at the same time.
const INTERLEAVED: usize = 64;
/// Blocks of one eviction.
pub const EVICTED_BLOCKS: usize = 16;
/// Conversations there are at least, however deep.
const LEAST_CONVERSATIONS: usize = 64;

/// How large a fleet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Targets, at least two.
    pub targets: u32,
    /// Blocks of a whole conversation; half of them belong to a chain that all targets hold.
    pub depth: usize,
    /// (target, block) pairs in all, about.
    pub memberships: usize,
}

/// A conversation: half a chain that all targets hold, half blocks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Conversation {
    chain: usize,
    /// The target that holds all of it.
    whole: u32,
    /// The target that holds half of its own blocks.
    half: u32,
}

/// The fleet, from which streams and requests are drawn.
pub struct Fleet {
    shape: Shape,
    naming: Naming,
    chains: usize,
    conversations: Vec<Conversation>,
}

/// A request for the first blocks of a conversation and then for others.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The request.
    pub request: Request,
    of: usize,
    known: usize,
}

/// A run of blocks that one target stores or evicts step by step.
#[derive(Clone, Copy, Debug)]
enum Job {
    Chain {
        target: u32,
        chain: usize,
    },
    Own {
        target: u32,
        of: usize,
        blocks: usize,
    },
    Evict {
        target: u32,
        of: usize,
        blocks: usize,
    },
}

impl Fleet {
    /// The fleet of `seed`.
    pub fn new(shape: Shape, naming: Naming, seed: u64) -> Self {
        assert!(2 <= shape.targets && 2 * EVICTED_BLOCKS <= shape.depth);
        let mut random = Random::new(seed);
        let half = shape.depth / 2;
        let on_all = half * shape.targets as usize;
        let chains = (shape.memberships / 4 / on_all).max(1);
        let rest = shape.memberships.saturating_sub(chains * on_all);
        let number = (rest / (half + half / 2)).max(LEAST_CONVERSATIONS);
        let conversation = |_| {
            let whole = random.below(shape.targets as usize);
            let half = (whole + 1 + random.below(shape.targets as usize - 1)) as u32;
            Conversation {
                chain: random.below(chains),
                whole: whole as u32,
                half: half % shape.targets,
            }
        };
        Self {
            shape,
            naming,
            chains,
            conversations: (0..number).map(conversation).collect(),
        }
    }

    /// Pairs of the smallest fleet of the targets and the depth of `shape`.
    pub fn least(shape: Shape) -> usize {
        let smallest = Shape {
            memberships: 0,
            ..shape
        };
        Self::new(smallest, Naming::Canonical, 0).memberships()
    }

    /// (target, block) pairs when all is stored.
    pub fn memberships(&self) -> usize {
        let half = self.shape.depth / 2;
        self.chains * half * self.shape.targets as usize
            + self.conversations.len() * (half + half / 2)
    }

    /// Distinct blocks when all is stored.
    pub fn blocks(&self) -> usize {
        (self.chains + self.conversations.len()) * (self.shape.depth / 2)
    }

    /// Everything that is stored: the chains first, then the conversations. Made as it is read.
    pub fn stores(&self, seed: u64) -> impl Iterator<Item = Event> {
        let mut chains = Vec::new();
        for chain in 0..self.chains {
            chains.extend((0..self.shape.targets).map(|target| Job::Chain { target, chain }));
        }
        let half = self.shape.depth / 2;
        let mut own = Vec::new();
        for (of, it) in self.conversations.iter().enumerate() {
            let (whole, second) = (it.whole, it.half);
            own.push(Job::Own {
                target: whole,
                of,
                blocks: half,
            });
            own.push(Job::Own {
                target: second,
                of,
                blocks: half / 2,
            });
        }
        self.interleave(chains, seed)
            .chain(self.interleave(own, seed + 1))
    }

    /// The evictions of every second conversation's own blocks, last block first.
    pub fn removals(&self, seed: u64) -> impl Iterator<Item = Event> {
        self.evictions(0, seed)
    }

    /// The evictions of the other conversations' own blocks, likewise.
    pub fn further_removals(&self, seed: u64) -> impl Iterator<Item = Event> {
        self.evictions(1, seed)
    }

    fn evictions(&self, first: usize, seed: u64) -> impl Iterator<Item = Event> {
        let half = self.shape.depth / 2;
        let mut jobs = Vec::new();
        let conversations = self.conversations.iter().enumerate();
        for (of, it) in conversations.skip(first).step_by(2) {
            let (whole, second) = (it.whole, it.half);
            jobs.push(Job::Evict {
                target: whole,
                of,
                blocks: half,
            });
            jobs.push(Job::Evict {
                target: second,
                of,
                blocks: half / 2,
            });
        }
        self.interleave(jobs, seed)
    }

    /// Requests: 60 % for a whole conversation, 30 % that leave one at some block, 10 % for what nobody holds.
    pub fn requests(&self, number: usize, seed: u64) -> Vec<Asked> {
        let mut random = Random::new(seed);
        let request = |_| {
            let of = random.below(self.conversations.len());
            let mut content = self.content(of);
            let known = match random.below(10) {
                0..6 => content.len(),
                6..9 => random.below(content.len()),
                _ => 0,
            };
            content[known..].fill_with(|| random.number());
            let request = Request::new(content);
            Asked { request, of, known }
        };
        (0..number).map(request).collect()
    }

    /// What the answer to `asked` has to be while everything is stored: leading blocks of each target.
    pub fn right(&self, asked: &Asked) -> Vec<u32> {
        let half = self.shape.depth / 2;
        let Conversation {
            whole,
            half: second,
            ..
        } = self.conversations[asked.of];
        let held = |target| match target {
            _ if target == whole => self.shape.depth,
            _ if target == second => half + half / 2,
            _ => half,
        };
        let depth = |target| u32::try_from(held(target).min(asked.known)).expect("few blocks");
        (0..self.shape.targets).map(depth).collect()
    }

    /// A whole conversation and the target that holds it, with the events that evict its last blocks there
    /// and that store them again.
    pub fn tail(&self, of: usize) -> (Request, u32, [Event; 2]) {
        let request = Request::new(self.content(of));
        let target = self.conversations[of].whole;
        let from = request.blocks() - EVICTED_BLOCKS;
        let block = |at: usize| self.block(target, &request, at);
        let removed = (from..request.blocks()).rev().map(|at| block(at).name);
        let evict = Change::Removed(removed.collect());
        let store = Change::Stored {
            parent: Some(block(from - 1).name),
            blocks: (from..request.blocks()).map(block).collect(),
        };
        let events = [evict, store].map(|change| Event { target, change });
        (request, target, events)
    }

    /// How many targets there are.
    pub fn targets(&self) -> u32 {
        self.shape.targets
    }

    /// How many conversations there are.
    pub fn conversations(&self) -> usize {
        self.conversations.len()
    }

    /// Evictions and stores of random conversations' last blocks, in turns, `events` in all.
    pub fn churn(&self, events: usize, seed: u64) -> Vec<Event> {
        let mut random = Random::new(seed);
        let pair = |_| self.tail(random.below(self.conversations.len())).2;
        (0..events.div_ceil(2)).flat_map(pair).collect()
    }

    /// The same of the conversations after `of`, without it.
    pub fn churn_without(&self, of: usize, events: usize) -> Vec<Event> {
        let number = self.conversations.len();
        let other = |after: usize| (of + 1 + after % (number - 1)) % number;
        let pair = |after| self.tail(other(after)).2;
        (0..events.div_ceil(2)).flat_map(pair).collect()
    }

    fn content(&self, of: usize) -> Vec<u64> {
        let half = self.shape.depth / 2;
        let chain = self.conversations[of].chain;
        let own = (0..half).map(|at| own_content(of, at));
        (0..half)
            .map(|at| chain_content(chain, at))
            .chain(own)
            .collect()
    }

    fn block(&self, target: u32, request: &Request, at: usize) -> Block {
        Block {
            name: self.naming.name(target, request.sequence[at]),
            content: request.content[at],
        }
    }

    /// The steps of `jobs`, a random one of those under way at a time.
    fn interleave(&self, jobs: Vec<Job>, seed: u64) -> impl Iterator<Item = Event> {
        let mut random = Random::new(seed);
        let mut left = shuffled(jobs, &mut random).into_iter();
        let mut active: Vec<Progress<'_>> = Vec::new();
        std::iter::from_fn(move || {
            loop {
                while active.len() < INTERLEAVED
                    && let Some(job) = left.next()
                {
                    active.push(Progress::new(self, job));
                }
                if active.is_empty() {
                    return None;
                }
                let at = random.below(active.len());
                match active[at].next() {
                    Some(event) => return Some(event),
                    None => drop(active.swap_remove(at)),
                }
            }
        })
    }
}

/// A job under way. It knows its blocks only as far as it has come, so that a stream takes little memory.
struct Progress<'a> {
    fleet: &'a Fleet,
    job: Job,
    done: usize,
    last: Option<SequenceHash>,
    /// Of an eviction: the names left, the next one last.
    names: Vec<u64>,
}

impl<'a> Progress<'a> {
    fn new(fleet: &'a Fleet, job: Job) -> Self {
        let half = fleet.shape.depth / 2;
        let mut started = Self {
            fleet,
            job,
            done: 0,
            last: None,
            names: Vec::new(),
        };
        if let Job::Own { of, .. } | Job::Evict { of, .. } = job {
            let chain = fleet.conversations[of].chain;
            for at in 0..half {
                started.last = Some(extend(started.last, chain_content(chain, at)));
            }
        }
        if let Job::Evict { target, of, blocks } = job {
            for at in 0..blocks {
                let sequence = extend(started.last, own_content(of, at));
                started.last = Some(sequence);
                started.names.push(fleet.naming.name(target, sequence));
            }
        }
        started
    }

    fn store(&mut self, target: u32, blocks: usize, content: impl Fn(usize) -> u64) -> Event {
        let name = |sequence| self.fleet.naming.name(target, sequence);
        let parent = self.last.map(name);
        let mut stored = Vec::with_capacity(blocks);
        for at in self.done..self.done + blocks {
            let content = content(at);
            let sequence = extend(self.last, content);
            self.last = Some(sequence);
            stored.push(Block {
                name: name(sequence),
                content,
            });
        }
        self.done += blocks;
        let change = Change::Stored {
            parent,
            blocks: stored,
        };
        Event { target, change }
    }
}

impl Iterator for Progress<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        match self.job {
            Job::Chain { target, chain } => {
                let left = self.fleet.shape.depth / 2 - self.done;
                let blocks = left.min(PREFILL_BLOCKS);
                (0 < left).then(|| self.store(target, blocks, |at| chain_content(chain, at)))
            }
            Job::Own { target, of, blocks } => {
                let prefilled = blocks - blocks / DECODED_PART;
                let blocks = match prefilled.saturating_sub(self.done) {
                    0 if self.done < blocks => 1,
                    0 => return None,
                    left => left.min(PREFILL_BLOCKS),
                };
                Some(self.store(target, blocks, |at| own_content(of, at)))
            }
            Job::Evict { target, .. } => {
                let kept = self.names.len().saturating_sub(EVICTED_BLOCKS);
                let mut names = self.names.split_off(kept);
                names.reverse();
                let change = Change::Removed(names);
                let some = matches!(&change, Change::Removed(names) if !names.is_empty());
                some.then_some(Event { target, change })
            }
        }
    }
}

fn chain_content(chain: usize, at: usize) -> u64 {
    mix(mix(2 * chain as u64) ^ at as u64)
}

fn own_content(of: usize, at: usize) -> u64 {
    mix(mix(2 * of as u64 + 1) ^ at as u64)
}

fn shuffled<T>(mut all: Vec<T>, random: &mut Random) -> Vec<T> {
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at + 1));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    const SHAPE: Shape = Shape {
        targets: 4,
        depth: 64,
        memberships: 20_000,
    };

    fn stored(fleet: &Fleet) -> Model {
        let mut model = Model::default();
        for event in fleet.stores(3) {
            assert!((1..=PREFILL_BLOCKS).contains(&event.blocks()));
            model.apply(&event);
        }
        model
    }

    fn held(model: &Model) -> usize {
        (0..SHAPE.targets).map(|it| model.names(it).count()).sum()
    }

    #[test]
    fn a_stream_stores_each_membership_once_and_a_quarter_is_of_chains() {
        let fleet = Fleet::new(SHAPE, Naming::PerTarget, 1);
        let blocks: usize = fleet.stores(3).map(|it| it.blocks()).sum();

        assert_eq!(blocks, fleet.memberships());
        assert_eq!(held(&stored(&fleet)), blocks);
        assert!((19_000..=20_000).contains(&blocks), "{blocks}");
        let of_chains = fleet.chains * SHAPE.depth / 2 * SHAPE.targets as usize;
        assert!(
            (blocks / 5..=blocks / 4).contains(&of_chains),
            "{of_chains}"
        );
    }

    #[test]
    fn removals_leave_every_second_conversation_its_chain_only() {
        let fleet = Fleet::new(SHAPE, Naming::Foreign, 1);
        let mut model = stored(&fleet);
        fleet.removals(5).for_each(|it| model.apply(&it));

        let depth = |of: usize| {
            let (request, target, _) = fleet.tail(of);
            model.depths(&request, SHAPE.targets)[target as usize] as usize
        };
        assert_eq!([depth(0), depth(1)], [SHAPE.depth / 2, SHAPE.depth]);
    }

    #[test]
    fn churn_restores_what_it_evicts() {
        let fleet = Fleet::new(SHAPE, Naming::Foreign, 1);
        let mut model = stored(&fleet);
        let before = held(&model);
        fleet.churn(100, 9).iter().for_each(|it| model.apply(it));

        assert_eq!(held(&model), before);
    }

    #[test]
    fn most_requests_are_held_in_full_some_in_part_and_some_not_at_all() {
        let fleet = Fleet::new(SHAPE, Naming::Canonical, 1);
        let model = stored(&fleet);
        let depth = |it: &Asked| {
            let depths = model.depths(&it.request, SHAPE.targets);
            assert_eq!(depths, fleet.right(it));
            depths.into_iter().max()
        };
        let depths: Vec<_> = fleet.requests(300, 2).iter().map(depth).collect();

        let share = |wanted: u32| depths.iter().filter(|it| **it == Some(wanted)).count();
        assert!((150..210).contains(&share(64)), "{}", share(64));
        assert!((15..60).contains(&share(0)), "{}", share(0));
    }
}
