//! Random work on an engine, compared after every pass with a model made of counted sets that sees only what
//! the engine reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::{BlockHash, BlockSize, DpRank, SequenceHash, Timestamp, Tokens};

use proptest::prelude::*;

use crate::{Cache, Config, Effect, Engine, Request, RequestId, StepTime};

pub(super) const BLOCK: u64 = 4;
pub(super) const RANKS: u32 = 2;
const KV_BLOCKS: u32 = 12;

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A prompt that follows one of three stems for a while and then goes its own way.
    Submit {
        rank: Option<u32>,
        stem: u64,
        shared: u64,
        isl: u64,
        osl: u64,
    },
    Pass,
    AbortDuringPass(usize),
    Clear(u32),
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let rank = prop_oneof![Just(None), (0..RANKS).prop_map(Some)];
    let submit = (rank, 0_u64..3, 0_u64..8, 1_u64..36, 1_u64..14).prop_map(
        |(rank, stem, shared, isl, osl)| Step::Submit {
            rank,
            stem,
            shared,
            isl,
            osl,
        },
    );
    prop_oneof![
        3 => submit,
        6 => Just(Step::Pass),
        1 => (0_usize..8).prop_map(Step::AbortDuringPass),
        1 => (0..RANKS).prop_map(Step::Clear),
    ]
}

pub(super) fn chain(stem: u64, shared: u64, own: u64, blocks: u64) -> Arc<[SequenceHash]> {
    let block = |at: u64| BlockHash::new(if at < shared { stem } else { 1000 + own } * 100 + at);
    let hashes: Vec<_> = (0..blocks).map(block).collect();
    domain::sequence_hashes(&hashes).into()
}

/// A small engine's.
pub(super) fn config(cache: Cache) -> Config {
    Config {
        block_size: BlockSize::new(BLOCK as u32).unwrap(),
        kv_blocks: KV_BLOCKS,
        max_running: 3,
        pass_tokens: 10,
        step: StepTime {
            base: Duration::from_millis(1),
            per_prefill_token: Duration::from_micros(10),
            per_sequence: Duration::from_micros(100),
        },
        cache,
    }
}

/// What a request that has begun and not ended is known to hold.
#[derive(Debug)]
struct Live {
    request: Request,
    rank: DpRank,
    begun: bool,
    holds: BTreeSet<SequenceHash>,
    generated: u64,
}

#[derive(Debug, Default)]
struct RankSet {
    copies: BTreeMap<SequenceHash, u32>,
    parent: BTreeMap<SequenceHash, SequenceHash>,
}

impl RankSet {
    fn overlap(&self, chain: &[SequenceHash]) -> u64 {
        let held = |it: &&SequenceHash| self.copies.contains_key(*it);
        chain.iter().take_while(held).count() as u64
    }

    fn remove(&mut self, block: SequenceHash) -> Result<(), TestCaseError> {
        let copies = self.copies.get_mut(&block);
        prop_assert!(copies.is_some(), "removed {block:?}, which was not there");
        let copies = copies.unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.copies.remove(&block);
            let orphan = self
                .copies
                .keys()
                .find(|it| self.parent.get(it) == Some(&block));
            prop_assert_eq!(orphan, None, "removed a parent before its child");
        }
        Ok(())
    }
}

struct World {
    engine: Engine,
    now: Timestamp,
    next_id: u64,
    sets: Vec<RankSet>,
    live: BTreeMap<RequestId, Live>,
}

impl World {
    fn new(cache: Cache) -> Self {
        Self {
            engine: Engine::new(config(cache), RANKS).unwrap(),
            now: Timestamp::ZERO,
            next_id: 0,
            sets: (0..RANKS).map(|_| RankSet::default()).collect(),
            live: BTreeMap::new(),
        }
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Submit {
                rank,
                stem,
                shared,
                isl,
                osl,
            } => {
                self.next_id += 1;
                let request = Request {
                    id: RequestId::new(self.next_id),
                    isl: Tokens::new(isl),
                    osl: Tokens::new(osl),
                    chain: chain(stem, shared, self.next_id, (isl + osl) / BLOCK),
                    rank: rank.map(DpRank::new),
                };
                let fits = (isl + osl - 1).div_ceil(BLOCK) <= u64::from(KV_BLOCKS);
                let taken = self.engine.submit(request.clone());
                prop_assert_eq!(taken.is_ok(), fits);
                if let Ok(rank) = taken {
                    let live = Live {
                        request,
                        rank,
                        begun: false,
                        holds: BTreeSet::new(),
                        generated: 0,
                    };
                    self.live.insert(RequestId::new(self.next_id), live);
                }
            }
            Step::Pass => self.pass(None)?,
            Step::AbortDuringPass(at) => self.pass(Some(at))?,
            Step::Clear(rank) => {
                let rank = DpRank::new(rank);
                let running = self.engine.status(rank).unwrap().running;
                let cleared = self.engine.clear(rank);
                prop_assert_eq!(cleared.is_ok(), running == 0);
                if let Ok(Some(Effect::Cleared { rank })) = cleared {
                    self.sets[rank.get() as usize] = RankSet::default();
                }
            }
        }
        Ok(())
    }

    fn pass(&mut self, abort: Option<usize>) -> Result<(), TestCaseError> {
        let pass = self.engine.next_pass(self.now);
        prop_assert_eq!(pass.is_some(), !self.live.is_empty());
        let Some(pass) = pass else { return Ok(()) };
        self.now = pass.ends_at;
        if let Some(id) = abort.and_then(|at| self.live.keys().nth(at).copied()) {
            prop_assert!(self.engine.abort(id));
            self.live.remove(&id);
        }
        let before: Vec<_> = self.sets.iter().map(|it| it.copies.clone()).collect();
        let effects = self.engine.finish_pass();
        for effect in &effects {
            self.observe(effect, &effects, &before)?;
        }
        self.compare()
    }

    fn observe(
        &mut self,
        effect: &Effect,
        all: &[Effect],
        before: &[BTreeMap<SequenceHash, u32>],
    ) -> Result<(), TestCaseError> {
        match effect {
            Effect::Cleared { rank } => self.sets[rank.get() as usize] = RankSet::default(),
            Effect::Removed { rank, blocks } => {
                for block in blocks {
                    self.sets[rank.get() as usize].remove(*block)?;
                }
            }
            Effect::Stored {
                rank,
                id,
                first_block,
                parent,
                blocks,
            } => {
                let live = self.live.get_mut(id).unwrap();
                prop_assert_eq!(live.rank, *rank);
                let first = *first_block as usize;
                prop_assert_eq!(
                    &live.request.chain[first..first + blocks.len()],
                    &blocks[..]
                );
                let set = &mut self.sets[rank.get() as usize];
                let mut parent = *parent;
                for block in blocks {
                    let copies = set.copies.entry(*block).or_default();
                    *copies += 1;
                    let once = self.engine.config().cache == Cache::Radix;
                    prop_assert!(!once || *copies == 1, "announced {block:?} twice");
                    if let Some(parent) = parent {
                        prop_assert!(set.copies.contains_key(&parent), "stored an orphan");
                        set.parent.insert(*block, parent);
                    }
                    parent = Some(*block);
                    live.holds.insert(*block);
                }
            }
            Effect::Cached { id, tokens } => self.check_cached(*id, *tokens, all, before)?,
            Effect::Preempted { id } => self.live.get_mut(id).unwrap().holds.clear(),
            Effect::FirstToken { id } => {
                let live = self.live.get_mut(id).unwrap();
                prop_assert_eq!(live.generated, 0);
                live.generated = 1;
            }
            Effect::Token { id } => {
                let live = self.live.get_mut(id).unwrap();
                prop_assert!(live.generated > 0);
                live.generated += 1;
            }
            Effect::Finished { id } => {
                let live = self.live.remove(id).unwrap();
                prop_assert_eq!(live.generated, live.request.osl.get());
            }
        }
        Ok(())
    }

    /// The overlap when the pass began, at most the prompt less one token; less only where the same pass
    /// evicted or a clear came between.
    fn check_cached(
        &mut self,
        id: RequestId,
        tokens: Tokens,
        all: &[Effect],
        before: &[BTreeMap<SequenceHash, u32>],
    ) -> Result<(), TestCaseError> {
        let live = self.live.get_mut(&id).unwrap();
        prop_assert!(!live.begun, "a request began twice");
        live.begun = true;
        let at_start = RankSet {
            copies: before[live.rank.get() as usize].clone(),
            parent: BTreeMap::new(),
        };
        let cap = (live.request.isl.get() - 1) / BLOCK;
        let overlap = at_start.overlap(&live.request.chain).min(cap) * BLOCK;
        let lost = all.iter().any(|it| {
            matches!(it, Effect::Removed { rank, .. } | Effect::Cleared { rank } if *rank == live.rank)
        });
        if lost {
            prop_assert!(tokens.get() <= overlap);
        } else {
            prop_assert_eq!(tokens.get(), overlap);
        }
        let blocks = (tokens.get() / BLOCK) as usize;
        live.holds.extend(&live.request.chain[..blocks]);
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        for (rank, set) in self.engine.ranks().zip(&self.sets) {
            let held: BTreeSet<_> = self.engine.held(rank).collect();
            // Until a rank's next pass, neither a clear nor an aborted pass's evictions are told.
            let told: BTreeSet<_> = set.copies.keys().copied().collect();
            prop_assert!(
                held.is_subset(&told),
                "the engine holds what it never announced"
            );
            let copies: u32 = set.copies.values().sum();
            prop_assert!(copies <= KV_BLOCKS, "more copies than blocks");
            let running = self.engine.status(rank).unwrap().running;
            if running > 0 {
                prop_assert_eq!(&held, &told);
            }
        }
        for live in self.live.values() {
            let set = &self.sets[live.rank.get() as usize];
            let lost = live.holds.iter().find(|it| !set.copies.contains_key(*it));
            prop_assert_eq!(lost, None, "evicted a block in use");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn what_an_engine_reports_adds_up_to_what_it_holds(
        cache in prop_oneof![Just(Cache::Blocks), Just(Cache::Radix)],
        steps in proptest::collection::vec(step(), 1..160),
    ) {
        let mut world = World::new(cache);
        for step in &steps {
            world.apply(step)?;
        }
        // Everything still there ends within the passes that its tokens can at most take.
        for _ in 0..20_000 {
            if world.live.is_empty() {
                break;
            }
            world.pass(None)?;
        }
        prop_assert!(world.live.is_empty(), "requests never end");
    }
}
