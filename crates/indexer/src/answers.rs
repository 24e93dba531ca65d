//! The index as others see it: one writer, many readers.
//!
//! One lock guards the index. The writer takes it for one operation of at most [`PIECE_BLOCKS`] blocks at a
//! time, well under a millisecond, and a reader for one lookup, tens of microseconds: neither waits long,
//! and a reader sees one state of all targets. What requests carried has a lock of its own, because each
//! recorded request writes it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use async_trait::async_trait;
use contracts::rpc::{
    CallError, DumpStream, Index, LocateRequest, OverlapAnswer, OverlapRequest, Shard, TargetDigest,
};
use domain::{DpRank, Target, TargetState, Timestamp};
use prefix_index::{Carried, PrefixIndex};
use service_kit::Clock;
use tokio::time::{Instant, sleep_until};

use crate::Config;
use crate::asked::Asked;
use crate::dump::Dumps;

/// The most blocks of one request: 16 million tokens of 16-token blocks.
const MAX_REQUEST_BLOCKS: usize = 1 << 20;
/// The longest that a prefix is waited for: a rank that has said nothing by then is silent.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How soon a prefix that nobody holds is looked for again, at first and at last: events come within
/// milliseconds or not for long.
const FIRST_LOOK_AGAIN: Duration = Duration::from_millis(2);
const LAST_LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What readers and the writer share.
pub(crate) struct Answers {
    held: RwLock<Held>,
    carried: Mutex<Carried>,
    /// When the index was last known to be level with the log; none until it has been once.
    level_at: Mutex<Option<Timestamp>>,
    /// What this index does not follow is unknown to it.
    shard: Shard,
    dumps: Dumps,
    clock: Clock,
}

/// What the events say.
pub(crate) struct Held {
    pub(crate) index: PrefixIndex,
    /// Targets whose claims are not complete, or that wait for lost events.
    pub(crate) not_ready: BTreeMap<Target, TargetState>,
}

impl Answers {
    pub(crate) fn new(config: &Config, clock: Clock, dumps: Dumps) -> Self {
        Self {
            held: RwLock::new(Held {
                index: PrefixIndex::new(config.departed_blocks),
                not_ready: BTreeMap::new(),
            }),
            carried: Mutex::new(Carried::new(config.carried_blocks)),
            level_at: Mutex::default(),
            shard: config.shard,
            dumps,
            clock,
        }
    }

    /// The index is level with the log as of `at`.
    pub(crate) fn level(&self, at: Timestamp) {
        *self.lock_level() = Some(at);
    }

    fn lock_level(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.level_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Held> {
        // A panic while writing is a broken invariant of the index; serving on is no worse than not.
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn carried(&self) -> MutexGuard<'_, Carried> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answers {
    /// The ranks of a worker that hold all of a prefix.
    fn holders(&self, request: &LocateRequest) -> Vec<DpRank> {
        let hashes = &request.hashes[..];
        let overlap = self.read().index.overlap(&request.namespace, hashes);
        let groups = overlap.groups.into_iter();
        let whole = groups.filter(|it| it.depths.disk as usize == hashes.len());
        let targets = whole.flat_map(|it| it.targets);
        let of_worker =
            targets.filter(|it| it.worker == request.worker && it.epoch == request.epoch);
        let mut ranks: Vec<DpRank> = of_worker.map(|it| it.dp_rank).collect();
        ranks.sort_unstable();
        ranks
    }
}

#[async_trait]
impl Index for Answers {
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        let OverlapRequest {
            namespace,
            hashes,
            record,
        } = request;
        if MAX_REQUEST_BLOCKS < hashes.blocks() {
            let blocks = hashes.blocks();
            return Err(CallError::InvalidArgument {
                why: format!("{blocks} blocks are more than {MAX_REQUEST_BLOCKS}"),
            });
        }
        let asked = Asked::new(&hashes)?;
        let carried = {
            let mut carried = self.carried();
            let depth = carried.depth(&namespace, asked.hashes());
            if record {
                carried.record(&namespace, asked.hashes());
            }
            asked.blocks_of(depth)
        };
        // What has not been read yet would pass for what nobody holds, and move conversations away from it.
        let Some(level_at) = *self.lock_level() else {
            return Err(CallError::Unavailable {
                service: "indexer",
                why: "the log is still being read".to_owned(),
            });
        };
        let (overlap, not_ready) = {
            let held = self.read();
            let not_ready = held
                .not_ready
                .iter()
                .map(|(it, state)| (it.clone(), *state));
            (asked.overlap(&held.index, &namespace), not_ready.collect())
        };
        Ok(OverlapAnswer {
            groups: overlap.groups,
            ceiling: carried.max(overlap.stored),
            stored: overlap.stored,
            not_ready,
            unknown: self.shard.unknown(),
            index_age: self.clock.now().since(level_at),
        })
    }

    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        let deadline = Instant::now() + request.deadline.min(LONGEST_WAIT);
        let mut pause = FIRST_LOOK_AGAIN;
        loop {
            let ranks = self.holders(&request);
            if !ranks.is_empty() || deadline <= Instant::now() {
                return Ok(ranks);
            }
            sleep_until(deadline.min(Instant::now() + pause)).await;
            pause = LAST_LOOK_AGAIN.min(pause * 2);
        }
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        let held = self.read();
        let digest = |rank: prefix_index::RankSummary| TargetDigest {
            state: held.state(&rank.target),
            target: rank.target,
            blocks: rank.blocks,
            digest: rank.digest,
        };
        Ok(held.index.ranks().map(digest).collect())
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        self.dumps.begin().await
    }
}

impl Held {
    fn state(&self, target: &Target) -> TargetState {
        let state = self.not_ready.get(target).copied();
        state.unwrap_or(TargetState::Ready)
    }
}
