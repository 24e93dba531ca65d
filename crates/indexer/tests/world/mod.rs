//! An indexer with a bus, a feed that notes what it is asked, and events to feed it.

#![allow(
    dead_code,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bus::{Bus, Expect, Key, MemoryBus, Record};
use contracts::rpc::{
    CallError, Feed, Index, OverlapAnswer, OverlapRequest, PrefixHashes, TargetDigest,
};
use contracts::topics::{FLEET, INCARNATIONS, LAYOUT, kv_events_of};
use contracts::{Encoding, FleetEntry};
use domain::{
    BlockHash, BlockSize, Capability, DpRank, EngineHash, EngineKind, Epoch, EventSeq, HeaderSpace,
    Incarnation, KvBatch, KvEndpoints, KvOp, Namespace, RankControl, ResetReason, SequenceHash,
    StoredBlock, StoredBlocks, Target, TargetState, Tier, Timestamp, Worker, WorkerId,
    sequence_hashes,
};
use indexer::{Config, Indexer};
use prefix_index::PrefixIndex;
use service_kit::{CancellationToken, Clock, Context, Health};
use tokio::task::JoinSet;

/// Polls until a condition, which may await, holds.
macro_rules! until {
    ($what:expr, $condition:expr) => {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            if $condition {
                break;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "not {} in time",
                $what
            );
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
}
pub(crate) use until;

/// Notes what it is asked for, and does nothing.
#[derive(Default)]
pub(crate) struct NotingFeed {
    asked: Mutex<Vec<(Target, EventSeq)>>,
}

#[async_trait]
impl Feed for NotingFeed {
    async fn resync(&self, target: &Target, from: EventSeq) -> Result<(), CallError> {
        self.asked.lock().unwrap().push((target.clone(), from));
        Ok(())
    }
}

/// What outlives an indexer.
pub(crate) struct World {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) feed: Arc<NotingFeed>,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) gone_grace_seconds: u64,
}

/// A running indexer.
pub(crate) struct Running {
    pub(crate) index: Arc<dyn Index>,
    pub(crate) routes: axum::Router,
    pub(crate) health: Health,
    registry: prometheus::Registry,
    shutdown: CancellationToken,
    task: JoinSet<anyhow::Result<()>>,
}

impl World {
    pub(crate) fn new() -> (Self, MemoryBus) {
        let bus = MemoryBus::new(&LAYOUT);
        (Self::over(Arc::new(bus.clone())), bus)
    }

    pub(crate) fn over(bus: Arc<dyn Bus>) -> Self {
        Self {
            bus,
            feed: Arc::default(),
            folder: tempfile::tempdir().unwrap(),
            gone_grace_seconds: 3600,
        }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    /// Starts an indexer and waits until it is ready.
    pub(crate) async fn start(&self) -> Running {
        let running = start(
            self.bus.clone(),
            self.feed.clone(),
            &self.store(),
            self.gone_grace_seconds,
        );
        running.ready().await;
        running
    }

    pub(crate) async fn append(&self, batch: KvBatch) {
        append(&*self.bus, batch).await;
    }

    pub(crate) async fn register(&self, worker: Worker) {
        let key = Key(worker.id.to_string().into());
        let value = FleetEntry::Worker(worker).to_bytes();
        let put = self.bus.put(&FLEET.table, key, Some(value), Expect::Any);
        put.await.unwrap();
    }

    pub(crate) async fn deregister(&self, worker: &str) {
        let key = Key(worker.to_owned().into());
        let put = self.bus.put(&FLEET.table, key, None, Expect::Any);
        put.await.unwrap();
    }

    pub(crate) async fn incarnate(&self, worker: &str, epoch: u64) {
        let incarnation = Incarnation {
            epoch: Epoch::new(epoch),
            why: "test".into(),
            since: Timestamp::ZERO,
        };
        let key = Key(worker.to_owned().into());
        let value = Some(incarnation.to_bytes());
        let known = self.bus.get(&INCARNATIONS.table, &key).await.unwrap();
        let expect = known.map_or(Expect::Absent, |it| Expect::At(it.revision));
        self.bus
            .put(&INCARNATIONS.table, key, value, expect)
            .await
            .unwrap();
    }

    pub(crate) fn asked(&self) -> Vec<(Target, EventSeq)> {
        self.feed.asked.lock().unwrap().clone()
    }
}

pub(crate) async fn append(bus: &dyn Bus, batch: KvBatch) {
    let at = kv_events_of(&batch.target.worker, batch.target.dp_rank);
    bus.append(&at, vec![Record(batch.to_bytes())])
        .await
        .unwrap();
}

pub(crate) fn start(bus: Arc<dyn Bus>, feed: Arc<dyn Feed>, store: &Path, grace: u64) -> Running {
    let config = Config {
        data_dir: store.to_owned(),
        gone_grace_seconds: grace,
        ..Config::default()
    };
    start_with(config, bus, feed, Vec::new())
}

/// One that may be a shard and have siblings.
pub(crate) fn start_with(
    config: Config,
    bus: Arc<dyn Bus>,
    feed: Arc<dyn Feed>,
    siblings: Vec<Arc<dyn Index>>,
) -> Running {
    let context = context();
    let (health, registry) = (context.health.clone(), context.registry.clone());
    let indexer = Indexer::new(config, bus, feed, context).unwrap();
    let indexer = indexer.with_siblings(siblings);
    let (index, routes) = (indexer.index(), indexer.routes());
    let shutdown = CancellationToken::new();
    let mut task = JoinSet::new();
    task.spawn(indexer.run(shutdown.clone()));
    Running {
        index,
        routes,
        health,
        registry,
        shutdown,
        task,
    }
}

pub(crate) fn context() -> Context {
    Context {
        registry: prometheus::Registry::new(),
        health: Health::default(),
        clock: Clock::system(),
    }
}

/// Runs `test` of the same binary in a process of its own, in `folder` with a folder for a bus, by which it knows that it
/// is meant.
pub(crate) fn spawn_child(test: &str, folder: &Path) -> Child {
    fs::create_dir(folder.join("bus")).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

impl Running {
    pub(crate) async fn ready(&self) {
        until!("ready", self.health.missing().is_empty());
    }

    /// Stops it in order.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        self.task.join_next().await.unwrap().unwrap().unwrap();
    }

    /// Drops it where it stands.
    pub(crate) async fn abandon(mut self) {
        self.task.shutdown().await;
    }

    pub(crate) async fn digests(&self) -> Vec<TargetDigest> {
        self.index.digests().await.unwrap()
    }

    pub(crate) async fn state(&self, target: &Target) -> Option<TargetState> {
        let of = |it: &TargetDigest| it.target == *target;
        let digests = self.digests().await;
        digests.iter().find(|it| of(it)).map(|it| it.state)
    }

    pub(crate) async fn overlap(&self, path: &[u64], record: bool) -> OverlapAnswer {
        self.try_overlap(path, record).await.unwrap()
    }

    pub(crate) async fn try_overlap(
        &self,
        path: &[u64],
        record: bool,
    ) -> Result<OverlapAnswer, CallError> {
        let request = OverlapRequest {
            namespace: namespace(),
            hashes: PrefixHashes::Dense(hashes(path)),
            record,
        };
        self.index.overlap(request).await
    }

    /// A counter or gauge, summed over labels that match.
    pub(crate) fn metric(&self, name: &str, label: Option<&str>) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|it| it.name() == name);
        let metrics = family.map(|it| it.get_metric()).unwrap_or_default();
        let matching = metrics.iter().filter(|metric| {
            let labels = metric.get_label();
            label.is_none_or(|wanted| labels.iter().any(|it| it.value() == wanted))
        });
        let value = |it: &prometheus::proto::Metric| {
            it.get_counter().get_value() + it.get_gauge().get_value()
        };
        matching.map(value).sum()
    }
}

pub(crate) fn target(text: &str) -> Target {
    text.parse().unwrap()
}

pub(crate) fn namespace() -> Namespace {
    Namespace {
        model: "m".parse().unwrap(),
        lora: None,
        salt: None,
        block_size: BlockSize::new(16).unwrap(),
    }
}

pub(crate) fn hashes(path: &[u64]) -> Vec<SequenceHash> {
    let blocks: Vec<BlockHash> = path.iter().copied().map(BlockHash::new).collect();
    sequence_hashes(&blocks)
}

pub(crate) fn batch(target: &Target, seq: u64, ops: Vec<KvOp>) -> KvBatch {
    KvBatch {
        target: target.clone(),
        seq: EventSeq::new(seq),
        part: 0,
        parts: 1,
        engine_ts: Timestamp::from_micros(seq),
        ops,
    }
}

/// Stores the blocks of `path`; the engine's name of a block is that of its path.
pub(crate) fn stored(path: &[u64], from: usize) -> KvOp {
    let names = hashes(path);
    let name = |at: usize| EngineHash::Int(names[at].get());
    KvOp::Stored(StoredBlocks {
        group: 0,
        parent: from.checked_sub(1).map(name),
        blocks: (from..path.len())
            .map(|at| StoredBlock {
                engine_hash: name(at),
                block_hash: BlockHash::new(path[at]),
            })
            .collect(),
        tier: Tier::Gpu,
        namespace: namespace(),
        session: None,
    })
}

/// Removes the last block of `path`.
pub(crate) fn removed(path: &[u64]) -> KvOp {
    let name = hashes(path).last().unwrap().get();
    KvOp::Removed {
        group: 0,
        engine_hashes: vec![EngineHash::Int(name)],
        tier: Tier::Gpu,
    }
}

pub(crate) fn reset() -> KvOp {
    let reason = ResetReason::ReplayGone;
    KvOp::Reset { reason }
}

/// A worker of one rank that can hold `kv_blocks`, with a lease that lasts.
pub(crate) fn worker(id: &str, kv_blocks: Option<u64>) -> Worker {
    Worker {
        id: WorkerId::new(id).unwrap(),
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: String::new(),
        model: "m".parse().unwrap(),
        start_rank: 0,
        dp_size: 1,
        block_size: BlockSize::new(16).unwrap(),
        page_size: BlockSize::new(16).unwrap(),
        kv_blocks,
        capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
        state: TargetState::Ready,
        url: String::new(),
        kv_endpoints: KvEndpoints::None,
        lease_until: Timestamp::from_micros(u64::MAX),
    }
}

/// A history of `batches` batches of each of a few ranks: stores with shared prefixes, removals, and a clear
/// now and then. Always the same.
pub(crate) fn history(ranks: u32, batches: u64) -> Vec<KvBatch> {
    let mut state = 7_u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut all = Vec::new();
    for seq in 0..batches {
        for rank in 0..ranks {
            let target = Target {
                worker: WorkerId::new("w").unwrap(),
                epoch: Epoch::FIRST,
                dp_rank: DpRank::new(rank),
            };
            let path: Vec<u64> = (0..1 + random(6)).map(|_| random(4)).collect();
            let op = match random(20) {
                0..13 => stored(&path, 0),
                13..19 => removed(&path),
                _ => KvOp::Cleared,
            };
            all.push(batch(&target, seq, vec![op]));
        }
    }
    all
}

/// What an index made of nothing but `batches` says of itself.
pub(crate) fn rebuilt(batches: &[KvBatch]) -> Vec<(Target, u64, u64)> {
    let mut index = PrefixIndex::new(0);
    for batch in batches {
        for op in &batch.ops {
            index.apply(&batch.target, op).unwrap();
        }
    }
    index
        .ranks()
        .map(|it| (it.target, it.blocks, it.digest))
        .collect()
}

pub(crate) fn contents(digests: &[TargetDigest]) -> Vec<(Target, u64, u64)> {
    let content = |it: &TargetDigest| (it.target.clone(), it.blocks, it.digest);
    digests.iter().map(content).collect()
}
