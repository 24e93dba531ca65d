//! A running ingest over a bus in memory, and what comes out of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bus::{
    Bus, BusError, Changes, Entry, Expect, Key, MemoryBus, Offset, Partition, Record, Records,
    Revision, Start, Table, Tail,
};
use bytes::Bytes;
use contracts::rpc::Feed;
use contracts::topics::{self, FLEET, INCARNATIONS, LAYOUT};
use contracts::{Encoding, FleetEntry};
use domain::{
    BlockSize, Capability, DpRank, EngineKind, Epoch, HeaderSpace, Incarnation, KvBatch,
    KvEndpoints, RankControl, RankEndpoint, TargetState, Timestamp, Worker, WorkerId,
};
use event_ingest::{Config, EventIngest};
use futures::StreamExt;
use service_kit::{CancellationToken, Clock, Context, Health};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::engine::BLOCK;

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A bus whose appends can be made to fail, and whose watches to end.
#[derive(Clone)]
pub(crate) struct Switched {
    inner: MemoryBus,
    pub(crate) down: Arc<AtomicBool>,
    pub(crate) refused: Arc<AtomicU64>,
    /// How many watches have begun.
    pub(crate) watches: Arc<AtomicU64>,
    ends: watch::Sender<()>,
}

impl Switched {
    pub(crate) fn new() -> Self {
        Self {
            inner: MemoryBus::new(&LAYOUT),
            down: Arc::default(),
            refused: Arc::default(),
            watches: Arc::default(),
            ends: watch::Sender::new(()),
        }
    }

    /// Ends all watches; new ones can be begun.
    pub(crate) fn end_watches(&self) {
        self.ends.send_replace(());
    }
}

#[async_trait]
impl Bus for Switched {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        if self.down.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(BusError::Unavailable("switched off".into()));
        }
        self.inner.append(at, batch).await
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        self.inner.read(at, start).await
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        self.inner.tail(at).await
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        self.inner.get(table, key).await
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        self.inner.put(table, key, value, expect).await
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        let changes = self.inner.watch(table).await?;
        self.watches.fetch_add(1, Ordering::Relaxed);
        let mut ends = self.ends.subscribe();
        let ended = async move { ends.changed().await };
        Ok(changes.take_until(Box::pin(ended)).boxed())
    }
}

pub(crate) fn worker_id() -> WorkerId {
    "w1".parse().unwrap()
}

/// A worker of `dp_size` ranks from 0 that publishes at `endpoints`.
pub(crate) fn worker(dp_size: u32, endpoints: Vec<RankEndpoint>) -> Worker {
    Worker {
        id: worker_id(),
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: String::new(),
        model: "m".parse().unwrap(),
        start_rank: 0,
        dp_size,
        block_size: BlockSize::new(BLOCK).unwrap(),
        page_size: BlockSize::new(BLOCK).unwrap(),
        kv_blocks: None,
        capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
        state: TargetState::Ready,
        url: "http://127.0.0.1:1".to_owned(),
        kv_endpoints: KvEndpoints::Zmq(endpoints),
        lease_until: Timestamp::from_micros(u64::MAX),
    }
}

pub(crate) async fn register(bus: &Switched, dp_size: u32, endpoints: Vec<RankEndpoint>) {
    register_worker(bus, worker(dp_size, endpoints)).await;
}

pub(crate) async fn register_worker(bus: &Switched, worker: Worker) {
    let key = Key(worker.id.to_string().into());
    let value = FleetEntry::Worker(worker).to_bytes();
    bus.put(&FLEET.table, key, Some(value), Expect::Any)
        .await
        .unwrap();
}

/// A running ingest.
pub(crate) struct Ingest {
    pub(crate) feed: Arc<dyn Feed>,
    pub(crate) health: Health,
    registry: prometheus::Registry,
    shutdown: CancellationToken,
    running: JoinSet<anyhow::Result<()>>,
}

impl Ingest {
    pub(crate) fn start(bus: &Switched, data_dir: &Path) -> Self {
        Self::start_with(bus, data_dir, |_| {})
    }

    pub(crate) fn start_with(
        bus: &Switched,
        data_dir: &Path,
        set: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config {
            data_dir: data_dir.to_owned(),
            ..Config::default()
        };
        set(&mut config);
        let context = Context {
            registry: prometheus::Registry::new(),
            health: Health::default(),
            clock: Clock::system(),
        };
        let (registry, health) = (context.registry.clone(), context.health.clone());
        let ingest = EventIngest::new(config, Arc::new(bus.clone()), context).unwrap();
        let feed = ingest.feed();
        let shutdown = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(ingest.run(shutdown.clone()));
        Self {
            feed,
            health,
            registry,
            shutdown,
            running,
        }
    }

    pub(crate) async fn ready(&self) {
        eventually(|| self.health.missing().is_empty()).await;
    }

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = timeout(PATIENCE, self.running.join_next()).await.unwrap();
        ended.unwrap().unwrap().unwrap();
    }

    /// A counter's value, 0 if it was never counted.
    pub(crate) fn count(&self, metric: &str, labels: &[(&str, &str)]) -> u64 {
        let families = self.registry.gather();
        let of_metric = families.iter().filter(|family| family.name() == metric);
        let counters = of_metric.flat_map(|family| family.get_metric());
        let matching = counters.filter(|counter| {
            labels.iter().all(|(name, value)| {
                let mut pairs = counter.get_label().iter();
                pairs.any(|pair| pair.name() == *name && pair.value() == *value)
            })
        });
        matching
            .map(|counter| counter.get_counter().get_value() as u64)
            .sum()
    }

    pub(crate) fn events(&self, result: &str) -> u64 {
        self.count("rankway_events_total", &[("result", result)])
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap();
}

/// The first `count` batches of one rank in the log.
pub(crate) async fn batches(bus: &Switched, dp_rank: u32, count: usize) -> Vec<KvBatch> {
    batches_of(bus, &worker_id(), dp_rank, count).await
}

pub(crate) async fn batches_of(
    bus: &Switched,
    worker: &WorkerId,
    dp_rank: u32,
    count: usize,
) -> Vec<KvBatch> {
    let at = topics::kv_events_of(worker, DpRank::new(dp_rank));
    let records = bus.read(&at, Start::Earliest).await.unwrap();
    let of_rank = records
        .map(|record| KvBatch::from_bytes(&record.unwrap().record.0).unwrap())
        .filter(|batch| {
            let (target, rank) = (&batch.target, DpRank::new(dp_rank));
            let matches = target.worker == *worker && target.dp_rank == rank;
            async move { matches }
        });
    let reading = of_rank.take(count).collect();
    timeout(PATIENCE, reading).await.unwrap()
}

/// The epoch and number of each batch.
pub(crate) fn numbers(batches: &[KvBatch]) -> Vec<(u64, u64)> {
    let number = |batch: &KvBatch| (batch.target.epoch.get(), batch.seq.get());
    batches.iter().map(number).collect()
}

pub(crate) async fn incarnation(bus: &Switched) -> Incarnation {
    let entry = bus.get(&INCARNATIONS.table, &Key("w1".into())).await;
    Incarnation::from_bytes(&entry.unwrap().unwrap().value).unwrap()
}
