//! Coding agents: lanes that each work through one tree of sessions after another, a tree being a main agent and the
//! sub-agents that it starts.
//!
//! Load is the number of live trees, as AgentX defines it: sub-agents run beside their main agent, a lane's next tree
//! begins when the main agent of the one before has ended, and pauses are from the end of an answer.

use std::time::Duration;

use domain::{BlockHash, BlockSize};

use super::script::{self, Lengths};
use super::{Begins, Session, Workload};
use crate::random::{Random, Spread};

/// What each answer is thought to take where lanes are cut to equal lengths, in seconds.
const ANSWER: f64 = 3.0;
/// What a lane is thought to take for a turn before any is drawn, in seconds.
const TURN: f64 = 30.0;
/// From the end of a tree's main agent to the lane's next tree, in seconds.
const BETWEEN_TREES: f64 = 1.0;
/// The chance that a sub-agent is started together with the one before.
const SAME_BURST: f64 = 0.5;

/// What is known of a kind of agent, in tokens, turns and seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Turns of a main agent.
    pub(super) turns: Spread,
    /// The most turns of any session.
    pub(super) most_turns: u32,
    /// What every prompt of a tree begins with.
    pub(super) system: u64,
    /// Tokens of a first prompt, and of one that begins anew, the system prompt among them.
    pub(super) first: Spread,
    /// Tokens by which a prompt exceeds the one before, the answer among them.
    pub(super) growth: Spread,
    /// Tokens of an answer.
    pub(super) output: Spread,
    /// From the end of an answer to the next turn.
    pub(super) gap: Spread,
    /// The longest such gap.
    pub(super) longest_gap: f64,
    /// The share of later turns whose prompts begin anew.
    pub(super) resets: f64,
    /// The longest prompt; what would be longer begins anew.
    pub(super) longest: u64,
    /// Sub-agents, where there are any.
    pub(super) sub_agents: Option<SubAgents>,
}

/// What is known of sub-agents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SubAgents {
    /// The share of main agents that start any.
    pub(super) share: f64,
    /// How many these start.
    pub(super) count: Spread,
    /// Turns of each.
    pub(super) turns: Spread,
    /// Tokens of a first prompt.
    pub(super) first: Spread,
}

/// Where answers are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decode {
    /// By the engine that computes the prompt.
    Here,
    /// By engines that are not simulated, each token in this time: the fleet is one of prefill workers. A turn asks
    /// for its first token alone, the rest of the answer is part of the pause after it, and its KV is not here.
    Elsewhere(Duration),
}

impl Decode {
    /// By decode workers of a wide deployment, which take 20 ms for a token.
    pub const ELSEWHERE: Self = Self::Elsewhere(Duration::from_millis(20));

    /// What is asked of an answer of this many tokens, at least one, and how long the rest of it takes elsewhere.
    pub(super) fn split(self, osl: u64) -> (u64, Duration) {
        match self {
            Self::Here => (osl, Duration::ZERO),
            Self::Elsewhere(token) => (1, token.mul_f64((osl - 1) as f64)),
        }
    }
}

/// A workload of agents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Agents {
    /// Its name.
    pub(super) name: &'static str,
    /// The kind of agents.
    pub(super) figures: Figures,
    /// Trees that are live at a time.
    pub(super) lanes: u32,
    /// Requests in all.
    pub(super) requests: usize,
    /// Over what time the lanes begin, evenly; the first tree of each does so in the middle of its work.
    pub(super) ramp: Duration,
    /// Whether all trees have one system prompt in common, rather than each its own.
    pub(super) one_system: bool,
    /// Tenants, each with a salt of its own, by which the same text has other hashes; lanes belong to them in turn.
    pub(super) tenants: u32,
    /// Where answers are generated.
    pub(super) decode: Decode,
    /// Tokens of a block.
    pub(super) block_size: BlockSize,
}

/// A turn, and when it is thought to be sent, in seconds.
#[derive(Clone, Copy)]
struct Timed {
    at: f64,
    lengths: Lengths,
}

struct Tree {
    main: Vec<Timed>,
    subs: Vec<Sub>,
}

struct Sub {
    /// The turn of the main agent that starts it.
    after: usize,
    /// The pause from that turn's end.
    pause: f64,
    turns: Vec<Timed>,
}

struct Lane {
    random: Random,
    clock: f64,
    trees: Vec<Tree>,
}

impl Agents {
    /// Draws the workload. The same arguments give the same.
    pub(super) fn draw(&self, seed: u64) -> Workload {
        let mut lanes: Vec<Lane> = (0..self.lanes).map(|it| self.lane(it, seed)).collect();
        let cut = self.cut(&mut lanes);
        let mut random = Random::new(seed);
        let systems = (0..self.tenants).map(|_| self.system(&mut random));
        let systems: Vec<Vec<BlockHash>> = systems.collect();
        let mut sessions = Vec::new();
        for (number, lane) in lanes.iter().enumerate() {
            let mut before = None;
            let tenant = number % systems.len();
            for tree in &lane.trees {
                let own;
                let opening = if self.one_system {
                    &systems[tenant]
                } else {
                    own = self.system(&mut random);
                    &own
                };
                let place = Place {
                    before,
                    tenant: tenant as u32,
                };
                let main = self.write(tree, &place, cut, opening, &mut random, &mut sessions);
                match main {
                    Some(main) => before = Some(main),
                    None => break,
                }
            }
        }
        Workload {
            name: self.name.to_owned(),
            block_size: self.block_size,
            sessions,
        }
    }

    /// The time up to which all lanes have together as many turns as are asked for.
    fn cut(&self, lanes: &mut [Lane]) -> f64 {
        let mut horizon = TURN * (self.requests as f64 / f64::from(self.lanes)).max(1.0);
        loop {
            let mut times = Vec::new();
            for lane in &mut *lanes {
                while lane.clock < horizon {
                    let tree = self.tree(lane);
                    lane.trees.push(tree);
                }
                let turns = lane.trees.iter().flat_map(Tree::turns);
                times.extend(turns.map(|it| it.at).filter(|at| *at < horizon));
            }
            if times.len() >= self.requests.max(1) {
                times.sort_by(f64::total_cmp);
                return times[self.requests.max(1) - 1];
            }
            horizon *= 2.0;
        }
    }

    /// A stream of draws of its own for each lane: more lanes leave the first ones as they are.
    fn lane(&self, number: u32, seed: u64) -> Lane {
        let share = f64::from(number) / f64::from(self.lanes);
        let mut lane = Lane {
            random: Random::stream(seed, number.into()),
            clock: self.ramp.as_secs_f64() * share,
            trees: Vec::new(),
        };
        let begins = lane.clock;
        let done = lane.random.unit();
        let mut first = self.tree(&mut lane);
        first.begin_midway(done);
        let moved = first.main[0].at - begins;
        first.shift(-moved);
        lane.clock -= moved;
        lane.trees.push(first);
        lane
    }

    fn tree(&self, lane: &mut Lane) -> Tree {
        let figures = &self.figures;
        let random = &mut lane.random;
        let (main, end) = self.turns(figures.turns, figures.first, lane.clock, random);
        let mut subs: Vec<Sub> = Vec::new();
        if let Some(known) = &figures.sub_agents
            && random.chance(known.share)
        {
            let count = known.count.draw(random).round().clamp(1.0, 20.0);
            for _ in 0..count as u32 {
                let after = match subs.last() {
                    Some(last) if random.chance(SAME_BURST) => last.after,
                    // A float to integer cast saturates.
                    _ => (random.unit() * main.len() as f64) as usize,
                };
                let pause = random.unit();
                let at = main[after].at + ANSWER + pause;
                let (turns, _) = self.turns(known.turns, known.first, at, random);
                subs.push(Sub {
                    after,
                    pause,
                    turns,
                });
            }
        }
        lane.clock = end + BETWEEN_TREES;
        Tree { main, subs }
    }

    /// Turns from `clock` on, and when the last has ended.
    fn turns(
        &self,
        count: Spread,
        first: Spread,
        mut clock: f64,
        random: &mut Random,
    ) -> (Vec<Timed>, f64) {
        let figures = &self.figures;
        let most = f64::from(figures.most_turns);
        let count = count.draw(random).round().clamp(1.0, most) as usize;
        let begin = |random: &mut Random| {
            let tokens = first.draw(random).round() as u64;
            tokens.clamp(figures.system + 1, figures.longest / 2)
        };
        let mut isl = begin(random);
        let (mut anew, mut gap) = (true, 0.0);
        let mut turns = Vec::with_capacity(count);
        for _ in 0..count {
            let output = (figures.output.draw(random).round() as u64).max(1);
            let growth = (figures.growth.draw(random).round() as u64).max(1);
            let growth = growth.min(figures.longest / 5);
            let (osl, after) = self.decode.split(output);
            let kept = match self.decode {
                Decode::Here => isl + growth.min(output),
                Decode::Elsewhere(_) => isl,
            };
            let lengths = Lengths {
                isl,
                osl,
                kept,
                gap: Duration::from_secs_f64(gap),
                anew,
            };
            turns.push(Timed { at: clock, lengths });
            gap = figures.gap.draw(random).min(figures.longest_gap) + after.as_secs_f64();
            clock += ANSWER + gap;
            anew = random.chance(figures.resets) || isl + growth > figures.longest;
            isl = if anew { begin(random) } else { isl + growth };
        }
        (turns, clock - gap)
    }

    fn system(&self, random: &mut Random) -> Vec<BlockHash> {
        let content = script::extend(&[], self.figures.system, self.block_size, random);
        content.blocks().to_vec()
    }

    /// Adds a tree's sessions up to the cut; the main agent's place among them, if it has begun by then.
    fn write(
        &self,
        tree: &Tree,
        place: &Place,
        cut: f64,
        opening: &[BlockHash],
        random: &mut Random,
        sessions: &mut Vec<Session>,
    ) -> Option<usize> {
        let main = sessions.len();
        let begins = match place.before {
            None => Begins::At(Duration::from_secs_f64(tree.main[0].at)),
            Some(session) => Begins::After {
                session,
                turn: sessions[session].turns.len() - 1,
                pause: Duration::from_secs_f64(BETWEEN_TREES),
            },
        };
        let agents = std::iter::once((None, begins, &tree.main));
        let subs = tree.subs.iter().map(|it| {
            let begins = Begins::After {
                session: main,
                turn: it.after,
                pause: Duration::from_secs_f64(it.pause),
            };
            (Some(main), begins, &it.turns)
        });
        for (parent, begins, turns) in agents.chain(subs) {
            let sent = turns.iter().take_while(|it| it.at <= cut);
            let lengths: Vec<Lengths> = sent.map(|it| it.lengths).collect();
            if lengths.is_empty() {
                continue;
            }
            sessions.push(Session {
                conversation: Some(sessions.len() as u32),
                parent,
                tenant: place.tenant,
                begins,
                turns: script::write(&lengths, opening, self.block_size, random),
            });
        }
        (sessions.len() > main).then_some(main)
    }
}

/// Where a tree stands.
struct Place {
    /// The main agent before it in its lane.
    before: Option<usize>,
    tenant: u32,
}

impl Tree {
    fn turns(&self) -> impl Iterator<Item = &Timed> {
        let subs = self.subs.iter().flat_map(|it| &it.turns);
        self.main.iter().chain(subs)
    }

    /// Leaves out what comes before this share of the main agent's turns.
    fn begin_midway(&mut self, done: f64) {
        // A float to integer cast saturates.
        let skipped = (done * self.main.len() as f64) as usize;
        self.main.drain(..skipped);
        self.main[0].lengths.anew = true;
        self.subs.retain(|it| it.after >= skipped);
        for sub in &mut self.subs {
            sub.after -= skipped;
        }
    }

    fn shift(&mut self, by: f64) {
        let subs = self.subs.iter_mut().flat_map(|it| &mut it.turns);
        for turn in self.main.iter_mut().chain(subs) {
            turn.at += by;
        }
    }
}
