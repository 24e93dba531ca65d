//! All ranks of one engine, in lock step.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{DpRank, SequenceHash, Timestamp};

use crate::rank::{Rank, RankStatus};
use crate::{Config, Effect, Pass, Refused, Request, RequestId};

/// A configuration that no engine can run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEngine {
    /// It has no ranks.
    #[error("an engine has at least one rank")]
    NoRanks,
    /// Its ranks have no blocks.
    #[error("a rank has at least one block")]
    NoBlocks,
    /// Its ranks may run no request.
    #[error("a rank runs at least one request at a time")]
    NoRequests,
    /// Its passes compute nothing.
    #[error("a pass computes at least one token")]
    NoTokens,
}

/// A rank's cache cannot be emptied while requests use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requests use the cache of rank {0}")]
pub struct RankInUse(pub DpRank);

/// One engine: ranks `0..n`, each with its own queue and cache, computing one pass after another together.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    ranks: Vec<Rank>,
    rank_of: BTreeMap<RequestId, DpRank>,
    pass: Option<Pass>,
    /// Where the search for the least loaded rank begins, so that equals take turns.
    next_rank: usize,
    passes: RankPasses,
}

/// Passes of ranks, each pass of an engine counted once for each of its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankPasses {
    /// All of them.
    pub all: u64,
    /// Those in which a rank had nothing to compute while another had.
    pub idle: u64,
}

impl Engine {
    /// An idle engine with empty caches.
    pub fn new(config: Config, ranks: u32) -> Result<Self, InvalidEngine> {
        Self::telling(config, ranks, true)
    }

    /// The same, which tells of each request's first token and of its end and of no token between them. What it does is
    /// the same at the same times, at a fraction of the cost.
    pub fn without_tokens(config: Config, ranks: u32) -> Result<Self, InvalidEngine> {
        Self::telling(config, ranks, false)
    }

    fn telling(config: Config, ranks: u32, tells_tokens: bool) -> Result<Self, InvalidEngine> {
        if ranks == 0 {
            return Err(InvalidEngine::NoRanks);
        }
        if config.kv_blocks == 0 {
            return Err(InvalidEngine::NoBlocks);
        }
        if config.max_running == 0 {
            return Err(InvalidEngine::NoRequests);
        }
        if config.pass_tokens == 0 {
            return Err(InvalidEngine::NoTokens);
        }
        let rank = |number| Rank::new(DpRank::new(number), config.kv_blocks, tells_tokens);
        Ok(Self {
            config,
            ranks: (0..ranks).map(rank).collect(),
            rank_of: BTreeMap::new(),
            pass: None,
            next_rank: 0,
            passes: RankPasses::default(),
        })
    }

    /// Its size and speed.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its ranks, ascending.
    pub fn ranks(&self) -> impl Iterator<Item = DpRank> + use<> {
        (0..self.ranks.len() as u32).map(DpRank::new)
    }

    /// Puts a request at the end of its rank's queue, or of the least loaded rank's if it names none. It is
    /// looked at when the next pass starts.
    pub fn submit(&mut self, request: Request) -> Result<DpRank, Refused> {
        if request.isl.get() == 0 || request.osl.get() == 0 {
            return Err(Refused::Empty);
        }
        if self.rank_of.contains_key(&request.id) {
            return Err(Refused::Duplicate(request.id));
        }
        // The last output token is never fed back, so it needs no room.
        let tokens = request.isl.get().saturating_add(request.osl.get() - 1);
        let needed = tokens.div_ceil(u64::from(self.config.block_size.get()));
        if needed > u64::from(self.config.kv_blocks) {
            return Err(Refused::NeverFits {
                needed,
                available: self.config.kv_blocks,
            });
        }
        let at = match request.rank {
            Some(rank) if (rank.get() as usize) < self.ranks.len() => rank.get() as usize,
            Some(rank) => {
                return Err(Refused::UnknownRank {
                    rank,
                    ranks: self.ranks.len() as u32,
                });
            }
            None => self.least_loaded(),
        };
        let rank = DpRank::new(at as u32);
        self.rank_of.insert(request.id, rank);
        self.ranks[at].enqueue(request);
        Ok(rank)
    }

    /// Drops a request wherever it is, at once; what it has put into the cache stays. False when there is
    /// none of this name.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(rank) = self.rank_of.remove(&id) else {
            return false;
        };
        self.ranks[rank.get() as usize].abort(id);
        true
    }

    /// The pass under way; where there is none, starts one at `now` if any request waits for it.
    pub fn next_pass(&mut self, now: Timestamp) -> Option<Pass> {
        if self.pass.is_none() && self.ranks.iter().any(Rank::has_work) {
            let config = &self.config;
            let mut slowest = Duration::ZERO;
            for rank in &mut self.ranks {
                let work = rank.schedule(config);
                slowest = slowest.max(config.step.of(work.prefill_tokens, work.sequences));
                self.passes.all += 1;
                self.passes.idle += u64::from(work.sequences == 0);
            }
            self.pass = Some(Pass {
                ends_at: now + slowest,
            });
        }
        self.pass
    }

    /// Ends the pass under way, and says what it brought about, rank after rank. Nothing when there is none.
    pub fn finish_pass(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.pass.take().is_some() {
            for rank in &mut self.ranks {
                rank.finish_pass(&self.config, &mut effects);
            }
            for effect in &effects {
                if let Effect::Finished { id } = effect {
                    self.rank_of.remove(id);
                }
            }
        }
        effects
    }

    /// Empties a rank's cache. With [`crate::Cache::Radix`] the effect is returned; else it is reported with the
    /// rank's next pass, as vLLM does, so an idle rank looks warm until then. A rank out of range has nothing
    /// to empty.
    pub fn clear(&mut self, rank: DpRank) -> Result<Option<Effect>, RankInUse> {
        match self.ranks.get_mut(rank.get() as usize) {
            Some(it) => it.clear(self.config.cache),
            None => Ok(None),
        }
    }

    /// Passes of its ranks since the start, that under way among them.
    pub const fn rank_passes(&self) -> RankPasses {
        self.passes
    }

    /// What a rank does at the moment; none out of range.
    pub fn status(&self, rank: DpRank) -> Option<RankStatus> {
        self.ranks.get(rank.get() as usize).map(Rank::status)
    }

    /// How many leading blocks of `chain` a rank's cache holds; none out of range.
    pub fn overlap(&self, rank: DpRank, chain: &[SequenceHash]) -> u32 {
        let rank = self.ranks.get(rank.get() as usize);
        rank.map_or(0, |it| it.pool().overlap(chain))
    }

    /// Every block in a rank's cache, once each, in no particular but a reproducible order.
    pub fn held(&self, rank: DpRank) -> impl Iterator<Item = SequenceHash> + '_ {
        let rank = self.ranks.get(rank.get() as usize);
        rank.into_iter().flat_map(|it| it.pool().contents())
    }

    /// vLLM's own balancing, from counts that are never stale: the least `waiting + running + 6 x waiting x
    /// max(0, kv_used - 0.5)`; equals take turns.
    fn least_loaded(&mut self) -> usize {
        let count = self.ranks.len();
        let score = |at: usize| {
            let rank = &self.ranks[at];
            let waiting = rank.waiting() as f64;
            let pressure = (rank.kv_used() - 0.5).max(0.0);
            waiting + rank.running() as f64 + 6.0 * waiting * pressure
        };
        let order = (0..count).map(|step| (self.next_rank + step) % count);
        let least = order.min_by(|a, b| score(*a).total_cmp(&score(*b)));
        let least = least.expect("an engine has at least one rank");
        self.next_rank = (least + 1) % count;
        least
    }
}
