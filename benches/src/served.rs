//! The indexer as it is deployed, over its real store and the real local log, in a process that may be killed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use bus::{Bus, Partition, Record, Start};
use bus_local::LocalBus;
use contracts::Encoding as _;
use contracts::rpc::{CallError, Feed, Index};
use contracts::topics::{LAYOUT, kv_events_of};
use domain::{
    DpRank, EngineHash, Epoch, EventSeq, KvBatch, KvOp, SequenceHash, Target, Timestamp, WorkerId,
};
use futures::StreamExt as _;
use indexer::{Config, Indexer};
use service_kit::{CancellationToken, Clock, Context, Health};
use tokio::task::JoinSet;

use crate::clock::process_cpu;
use crate::event::{Event, Naming, extend};
use crate::fleet::{Fleet, Shape};
use crate::structures::{Ours, Structure as _};

/// Workers, of one rank each.
pub const WORKERS: u32 = 7;
/// Blocks of a conversation.
pub const DEPTH: usize = 512;
const SEED: u64 = 2026;
/// Operations of one batch on the log.
const OPS: usize = 16;
/// Records appended at once while the log is filled.
const APPENDED: usize = 64;
/// How often the service is asked whether it is ready.
const POLL: Duration = Duration::from_millis(2);
/// How often it is asked how much it holds, which costs it work.
const SELDOM: Duration = Duration::from_millis(500);
/// How long what was applied may take to reach the disk.
const SETTLE: Duration = Duration::from_secs(1);
/// The pause between batches once all is filled.
const PACE: Duration = Duration::from_millis(2);

/// What the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Deed {
    /// Fills an empty index through the log, says so, and goes on with evictions and stores until killed.
    Fill,
    /// Starts over what a killed process has left, says when it answers, and whether that is right.
    Restart,
}

/// The command line of the process.
#[derive(Clone, Debug, clap::Args)]
pub struct Service {
    #[arg(value_enum)]
    deed: Deed,
    folder: PathBuf,
    memberships: usize,
}

impl Service {
    /// Runs until killed.
    pub fn run(&self) -> anyhow::Result<()> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.enable_all().build()?.block_on(self.serve())
    }

    async fn serve(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.folder).context("make the folder")?;
        let bus = LocalBus::open(&self.folder.join("log"), &LAYOUT).await?;
        let running = Running::start(Arc::new(bus), self.folder.join("index"))?;
        match self.deed {
            Deed::Fill => self.fill(running).await,
            Deed::Restart => restart(running).await,
        }
    }

    async fn fill(&self, running: Running) -> anyhow::Result<()> {
        let shape = Shape {
            targets: WORKERS,
            depth: DEPTH,
            memberships: self.memberships,
        };
        let fleet = Fleet::new(shape, Naming::Foreign, SEED);
        let mut log = Log::new(running.bus.clone());
        for event in fleet.stores(SEED) {
            log.put(&event).await?;
        }
        log.flush().await?;
        let all = fleet.memberships() as u64;
        running
            .until(SELDOM, async |it| Ok(it.blocks().await? == all))
            .await?;
        tokio::time::sleep(SETTLE).await;
        println!("level {}", log.bytes);
        for seed in SEED.. {
            for event in fleet.churn(OPS, seed) {
                log.put(&event).await?;
            }
            log.flush().await?;
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    }
}

async fn restart(running: Running) -> anyhow::Result<()> {
    running
        .until(POLL, async |it| Ok(it.health.missing().is_empty()))
        .await?;
    let digests = running.index.digests().await?;
    println!("ready {}", process_cpu().as_secs_f64());
    let held: BTreeMap<Target, (u64, u64)> = digests
        .into_iter()
        .map(|it| (it.target, (it.blocks, it.digest)))
        .collect();
    let right = truth(&*running.bus).await?;
    println!("equal {}", held == right);
    std::future::pending().await
}

/// A running indexer.
struct Running {
    bus: Arc<dyn Bus>,
    index: Arc<dyn Index>,
    health: Health,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Running {
    fn start(bus: Arc<dyn Bus>, data_dir: PathBuf) -> anyhow::Result<Self> {
        let context = Context {
            registry: prometheus::Registry::new(),
            health: Health::default(),
            clock: Clock::system(),
        };
        let config = Config {
            data_dir,
            ..Config::default()
        };
        let health = context.health.clone();
        let indexer = Indexer::new(config, bus.clone(), Arc::new(NoFeed), context)?;
        let index = indexer.index();
        let mut tasks = JoinSet::new();
        tasks.spawn(indexer.run(CancellationToken::new()));
        Ok(Self {
            bus,
            index,
            health,
            tasks,
        })
    }

    async fn until(
        &self,
        pause: Duration,
        came: impl AsyncFn(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        while !came(self).await? {
            ensure!(!self.tasks.is_empty(), "the indexer has ended");
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Memberships.
    async fn blocks(&self) -> anyhow::Result<u64> {
        match self.index.digests().await {
            Ok(digests) => Ok(digests.iter().map(|it| it.blocks).sum()),
            Err(error) if error.is_retryable() => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

/// Engines that no longer keep their events.
struct NoFeed;

#[async_trait]
impl Feed for NoFeed {
    async fn resync(&self, _: &Target, _: EventSeq) -> Result<(), CallError> {
        Err(CallError::Unavailable {
            service: "feed",
            why: "there is none".into(),
        })
    }
}

/// The writing end of the log.
struct Log {
    bus: Arc<dyn Bus>,
    form: Ours,
    seqs: Vec<u64>,
    ops: BTreeMap<u32, Vec<KvOp>>,
    waiting: HashMap<Partition, Vec<Record>>,
    bytes: u64,
}

impl Log {
    fn new(bus: Arc<dyn Bus>) -> Self {
        Self {
            bus,
            form: Ours::new(WORKERS),
            seqs: vec![0; WORKERS as usize],
            ops: BTreeMap::new(),
            waiting: HashMap::new(),
            bytes: 0,
        }
    }

    async fn put(&mut self, event: &Event) -> anyhow::Result<()> {
        let ops = self.ops.entry(event.target).or_default();
        ops.push(self.form.op(event));
        if OPS <= ops.len() {
            let ops = std::mem::take(ops);
            self.batch(event.target, ops).await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        for (number, ops) in std::mem::take(&mut self.ops) {
            self.batch(number, ops).await?;
        }
        for (partition, records) in std::mem::take(&mut self.waiting) {
            self.bus.append(&partition, records).await?;
        }
        Ok(())
    }

    async fn batch(&mut self, number: u32, ops: Vec<KvOp>) -> anyhow::Result<()> {
        let seq = &mut self.seqs[number as usize];
        let batch = KvBatch {
            target: target(number)?,
            seq: EventSeq::new(*seq),
            part: 0,
            parts: 1,
            engine_ts: Timestamp::from_micros(*seq),
            ops,
        };
        *seq += 1;
        let partition = kv_events_of(&batch.target.worker, batch.target.dp_rank);
        let bytes = batch.to_bytes();
        self.bytes += bytes.len() as u64;
        let waiting = self.waiting.entry(partition).or_default();
        waiting.push(Record(bytes));
        if APPENDED <= waiting.len() {
            let records = std::mem::take(waiting);
            self.bus.append(&partition, records).await?;
        }
        Ok(())
    }
}

fn target(number: u32) -> anyhow::Result<Target> {
    Ok(Target {
        worker: WorkerId::new(&format!("w{number}"))?,
        epoch: Epoch::FIRST,
        dp_rank: DpRank::new(0),
    })
}

/// Blocks and digest of each target by the log alone, counted as naively as can be.
async fn truth(bus: &dyn Bus) -> anyhow::Result<BTreeMap<Target, (u64, u64)>> {
    let mut held: BTreeMap<Target, HashMap<EngineHash, SequenceHash>> = BTreeMap::new();
    let targets: Vec<Target> = (0..WORKERS).map(target).collect::<anyhow::Result<_>>()?;
    let partitions: HashSet<Partition> = (targets.iter())
        .map(|it| kv_events_of(&it.worker, it.dp_rank))
        .collect();
    for partition in &partitions {
        let end = bus.tail(partition).await?.last;
        let mut records = bus.read(partition, Start::Earliest).await?;
        while let Some(delivered) = records.next().await {
            let delivered = delivered?;
            let batch = KvBatch::from_bytes(&delivered.record.0)?;
            let names = held.entry(batch.target.clone()).or_default();
            batch.ops.into_iter().try_for_each(|it| replay(names, it))?;
            if Some(delivered.offset) == end {
                break;
            }
        }
    }
    let sums = |names: HashMap<EngineHash, SequenceHash>| {
        let terms = names.values().map(|it| it.digest_term());
        (names.len() as u64, terms.fold(0, u64::wrapping_add))
    };
    Ok(held
        .into_iter()
        .map(|(target, names)| (target, sums(names)))
        .collect())
}

fn replay(names: &mut HashMap<EngineHash, SequenceHash>, op: KvOp) -> anyhow::Result<()> {
    match op {
        KvOp::Stored(stored) => {
            let parent = |name| names.get(name).copied().context("a parent that was stored");
            let mut last = stored.parent.as_ref().map(parent).transpose()?;
            for block in stored.blocks {
                let sequence = extend(last, block.block_hash.get());
                names.insert(block.engine_hash, sequence);
                last = Some(sequence);
            }
        }
        KvOp::Removed { engine_hashes, .. } => {
            engine_hashes.iter().for_each(|it| {
                names.remove(it);
            });
        }
        KvOp::Retiered { .. } | KvOp::Cleared | KvOp::Reset { .. } => {
            anyhow::bail!("the log was filled with stores and evictions only")
        }
    }
    Ok(())
}
