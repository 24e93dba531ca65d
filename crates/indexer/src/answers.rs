//! The index as others see it: one writer, many readers.
//!
//! A lookup takes no lock on the index: it asks a [`Reader`], which answers one state of all targets while the
//! writer writes. The lock of the index is the writer's, for one operation of at most [`PIECE_BLOCKS`] blocks
//! at a time, and for those who sum digests. What requests carried and who is not ready have locks of their
//! own, which nobody holds for longer than to look something up or to copy a list.

use std::collections::BTreeMap;
use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

use async_trait::async_trait;
use contracts::rpc::{
    CallError, DumpStream, Index, LocateRequest, OverlapAnswer, OverlapRequest, Shard, TargetDigest,
};
use domain::{DpRank, Target, TargetState, Timestamp};
use prefix_index::{Carried, PrefixIndex, Reader};
use service_kit::Clock;
use tokio::time::{Instant, sleep_until};

use crate::Config;
use crate::asked::Asked;
use crate::dump::Dumps;
use crate::members::Members;

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
    index: RwLock<PrefixIndex>,
    /// Of the index; none before it has been taken from the store.
    reader: OnceLock<Reader>,
    /// Targets whose claims are not complete, or that wait for lost events.
    not_ready: Mutex<BTreeMap<Target, TargetState>>,
    carried: Mutex<Carried>,
    pub(crate) members: Members,
    /// When the index was last known to be level with the log; none until it has been once.
    level_at: Mutex<Option<Timestamp>>,
    /// What this index does not follow is unknown to it.
    pub(crate) shard: Shard,
    dumps: Dumps,
    pub(crate) clock: Clock,
}

impl Answers {
    pub(crate) fn new(config: &Config, clock: Clock, dumps: Dumps) -> Self {
        Self {
            index: RwLock::new(PrefixIndex::new(config.departed_blocks)),
            reader: OnceLock::new(),
            not_ready: Mutex::default(),
            carried: Mutex::new(Carried::new(config.carried_blocks)),
            members: Members::default(),
            level_at: Mutex::default(),
            shard: config.shard,
            dumps,
            clock,
        }
    }

    /// Answers from `index`, once and for all.
    pub(crate) fn begin(&self, index: PrefixIndex) {
        let reader = index.reader();
        *self.write() = index;
        assert!(self.reader.set(reader).is_ok(), "an indexer runs once");
    }

    /// The index is level with the log as of `at`.
    pub(crate) fn level(&self, at: Timestamp) {
        *self.lock_level() = Some(at);
    }

    /// Since when the index is level with the log, and what it is asked. Fails until it has been level once: what
    /// has not been read yet would pass for what nobody holds, and move conversations away from it.
    pub(crate) fn level_reader(&self) -> Result<(Timestamp, &Reader), CallError> {
        let level_at = *self.lock_level();
        level_at
            .zip(self.reader.get())
            .ok_or_else(|| CallError::Unavailable {
                service: "indexer",
                why: "the log is still being read".to_owned(),
            })
    }

    fn lock_level(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.level_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, PrefixIndex> {
        // A panic while writing is a broken invariant of the index; serving on is no worse than not.
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, PrefixIndex> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn not_ready(&self) -> MutexGuard<'_, BTreeMap<Target, TargetState>> {
        let not_ready = self.not_ready.lock();
        not_ready.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn carried(&self) -> MutexGuard<'_, Carried> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answers {
    /// The ranks of a worker that hold all of a prefix.
    fn holders(&self, request: &LocateRequest, asked: &Asked<'_>) -> Vec<DpRank> {
        let Some(reader) = self.reader.get() else {
            return Vec::new();
        };
        let blocks = request.hashes.blocks();
        let overlap = asked.overlap(reader, &request.namespace);
        let groups = overlap.groups.into_iter();
        let whole = groups.filter(|it| it.depths.disk as usize == blocks);
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
        let (level_at, reader) = self.level_reader()?;
        let not_ready = self.not_ready().clone();
        let overlap = asked.overlap(reader, &namespace);
        Ok(OverlapAnswer {
            groups: overlap.groups,
            ceiling: carried.max(overlap.stored),
            stored: overlap.stored,
            not_ready: not_ready.into_iter().collect(),
            unknown: self.shard.unknown(),
            index_age: self.clock.now().since(level_at),
        })
    }

    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        let asked = Asked::new(&request.hashes)?;
        let deadline = Instant::now() + request.deadline.min(LONGEST_WAIT);
        let mut pause = FIRST_LOOK_AGAIN;
        loop {
            let ranks = self.holders(&request, &asked);
            if !ranks.is_empty() || deadline <= Instant::now() {
                return Ok(ranks);
            }
            sleep_until(deadline.min(Instant::now() + pause)).await;
            pause = LAST_LOOK_AGAIN.min(pause * 2);
        }
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        let index = self.read();
        let not_ready = self.not_ready().clone();
        let state = |target: &Target| not_ready.get(target).copied();
        let digest = |rank: prefix_index::RankSummary| TargetDigest {
            state: state(&rank.target).unwrap_or(TargetState::Ready),
            target: rank.target,
            blocks: rank.blocks,
            digest: rank.digest,
        };
        Ok(index.ranks().map(digest).collect())
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        self.dumps.begin().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use contracts::rpc::PrefixHashes;
    use domain::{
        BlockHash, BlockSize, EngineHash, Epoch, KvOp, ModelName, Namespace, StoredBlock,
        StoredBlocks, Tier, WorkerId, sequence_hashes,
    };

    use super::*;
    use crate::dump::dumps;

    #[test]
    fn lookups_do_not_wait_for_the_writer() {
        let namespace = Namespace {
            model: ModelName::new("m").expect("a plain name"),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).expect("not zero"),
        };
        let target = Target {
            worker: WorkerId::new("w").expect("a plain id"),
            epoch: Epoch::FIRST,
            dp_rank: DpRank::new(0),
        };
        let block = BlockHash::new(7);
        let chain = sequence_hashes(&[block]);
        let stored = KvOp::Stored(StoredBlocks {
            group: 0,
            parent: None,
            blocks: vec![StoredBlock {
                engine_hash: EngineHash::Int(chain[0].get()),
                block_hash: block,
            }],
            tier: Tier::Gpu,
            namespace: namespace.clone(),
            session: None,
        });
        let clock = Clock::system();
        let answers = Arc::new(Answers::new(&Config::default(), clock, dumps().0));
        answers.begin(PrefixIndex::new(1));
        answers.level(clock.now());

        let mut writing = answers.write();
        writing.apply(&target, &stored).expect("not fenced");
        let (tell, told) = mpsc::channel();
        let asking = answers.clone();
        let asked = target.clone();
        thread::spawn(move || {
            let overlap = OverlapRequest {
                namespace: namespace.clone(),
                hashes: PrefixHashes::Dense(chain.clone()),
                record: false,
            };
            let locate = LocateRequest {
                namespace,
                worker: asked.worker,
                epoch: asked.epoch,
                hashes: PrefixHashes::Dense(chain),
                deadline: Duration::ZERO,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.expect("a runtime without drivers");
            let overlap = runtime.block_on(asking.overlap(overlap));
            let ranks = runtime.block_on(asking.locate(locate));
            tell.send((overlap, ranks)).expect("the test waits");
        });
        let answered = told.recv_timeout(Duration::from_secs(60));
        let (overlap, ranks) = answered.expect("nothing to wait for");
        let overlap = overlap.expect("level with the log");
        assert_eq!(overlap.groups[0].targets, [target]);
        assert_eq!(ranks.expect("located"), [DpRank::new(0)]);
        drop(writing);
    }
}
