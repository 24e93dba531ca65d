//! An engine that tells of no tokens but the first and the last does the same as one that tells of all.

use domain::{DpRank, Timestamp, Tokens};
use proptest::prelude::*;

use super::naive::{BLOCK, RANKS, Step, chain, config, step};
use crate::{Cache, Config, Effect, Engine, Request, RequestId};

/// Both, and what they are at.
struct Twins {
    telling: Engine,
    silent: Engine,
    now: Timestamp,
    requests: u64,
    live: Vec<RequestId>,
}

impl Twins {
    fn new(config: Config) -> Self {
        Self {
            telling: Engine::new(config, RANKS).unwrap(),
            silent: Engine::without_tokens(config, RANKS).unwrap(),
            now: Timestamp::ZERO,
            requests: 0,
            live: Vec::new(),
        }
    }

    fn apply(&mut self, step: &Step, longer: u64) -> Result<(), TestCaseError> {
        match *step {
            Step::Submit {
                rank,
                stem,
                shared,
                isl,
                osl,
            } => {
                self.requests += 1;
                let osl = osl * longer;
                let request = Request {
                    id: RequestId::new(self.requests),
                    isl: Tokens::new(isl),
                    osl: Tokens::new(osl),
                    chain: chain(stem, shared, self.requests, (isl + osl) / BLOCK),
                    rank: rank.map(DpRank::new),
                };
                let taken = self.telling.submit(request.clone());
                prop_assert_eq!(taken, self.silent.submit(request));
                if taken.is_ok() {
                    self.live.push(RequestId::new(self.requests));
                }
            }
            Step::Pass => self.pass(None)?,
            Step::AbortDuringPass(at) => self.pass(Some(at))?,
            Step::Clear(rank) => {
                let rank = DpRank::new(rank);
                prop_assert_eq!(self.telling.clear(rank), self.silent.clear(rank));
            }
        }
        Ok(())
    }

    fn pass(&mut self, abort: Option<usize>) -> Result<(), TestCaseError> {
        let pass = self.telling.next_pass(self.now);
        prop_assert_eq!(pass, self.silent.next_pass(self.now));
        let Some(pass) = pass else { return Ok(()) };
        self.now = pass.ends_at;
        if let Some(id) = abort.and_then(|at| self.live.get(at).copied()) {
            prop_assert!(self.telling.abort(id) && self.silent.abort(id));
            self.live.retain(|it| *it != id);
        }
        let mut told = self.telling.finish_pass();
        told.retain(|it| !matches!(it, Effect::Token { .. }));
        prop_assert_eq!(&told, &self.silent.finish_pass());
        for effect in &told {
            if let Effect::Finished { id } = effect {
                self.live.retain(|it| it != id);
            }
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        for rank in self.telling.ranks() {
            prop_assert_eq!(self.telling.status(rank), self.silent.status(rank));
            let held = self.telling.held(rank).eq(self.silent.held(rank));
            prop_assert!(held, "they hold different blocks");
        }
        prop_assert_eq!(self.telling.rank_passes(), self.silent.rank_passes());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn an_engine_that_tells_of_no_tokens_does_the_same_at_the_same_times(
        cache in prop_oneof![Just(Cache::Blocks), Just(Cache::Radix)],
        large in any::<bool>(),
        pass_tokens in 2_u32..12,
        steps in proptest::collection::vec(step(), 1..160),
    ) {
        // Large ones run long answers side by side, small ones run out of blocks.
        let (kv_blocks, longer) = if large { (200, 6) } else { (12, 1) };
        let mut twins = Twins::new(Config { kv_blocks, pass_tokens, ..config(cache) });
        for step in &steps {
            twins.apply(step, longer)?;
        }
        for _ in 0..20_000 {
            if twins.live.is_empty() {
                break;
            }
            twins.pass(None)?;
        }
        prop_assert!(twins.live.is_empty(), "requests never end");
    }
}
