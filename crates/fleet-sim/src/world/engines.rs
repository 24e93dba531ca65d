//! The engines, and what they say of themselves.

use std::sync::Arc;
use std::time::Duration;

use domain::{
    BlockSize, Capability, DpRank, EngineHash, EngineKind, Epoch, HeaderSpace, KvEndpoints, KvOp,
    ModelName, Namespace, RankControl, RankLoad, SequenceHash, StoredBlock, StoredBlocks, Target,
    TargetState, Tier, Timestamp, Worker, WorkerId,
};
use engine_model::{Cache, Config, Effect, Engine, InvalidEngine, RankPasses, Request};

use crate::setting::Fleet;
use crate::{Content, Setting};

/// All engines. A worker is known by its place in the list.
pub(super) struct Engines {
    machines: Vec<Machine>,
    config: Config,
    ranks: u32,
    /// Passes of engines that are no more.
    passes: RankPasses,
    /// From when passes' times are added up, over all workers.
    from: Timestamp,
    busy: Duration,
}

/// A worker.
struct Machine {
    id: WorkerId,
    engine: Engine,
    epoch: Epoch,
    up: bool,
    /// When the pass under way ends.
    ends_at: Option<Timestamp>,
}

impl Engines {
    pub(super) fn new(setting: &Setting, block_size: BlockSize) -> Result<Self, InvalidEngine> {
        let Fleet {
            workers,
            ranks,
            kv_blocks,
            pass_tokens,
            max_running,
            step,
        } = setting.fleet;
        let config = Config {
            block_size,
            kv_blocks,
            max_running,
            pass_tokens,
            step,
            cache: Cache::Blocks,
        };
        let mut engines = Self {
            machines: Vec::new(),
            config,
            ranks,
            passes: RankPasses::default(),
            from: Timestamp::ZERO + setting.warm_up,
            busy: Duration::ZERO,
        };
        for _ in 0..workers {
            engines.add()?;
        }
        Ok(engines)
    }

    /// One more worker; its number.
    pub(super) fn add(&mut self) -> Result<usize, InvalidEngine> {
        let number = self.machines.len();
        let id = WorkerId::new(&format!("w{}", number + 1)).expect("a short plain name");
        self.machines.push(Machine {
            id,
            engine: Engine::without_tokens(self.config, self.ranks)?,
            epoch: Epoch::FIRST,
            up: true,
            ends_at: None,
        });
        Ok(number)
    }

    pub(super) fn len(&self) -> usize {
        self.machines.len()
    }

    pub(super) const fn ranks(&self) -> u32 {
        self.ranks
    }

    pub(super) fn id(&self, worker: usize) -> &WorkerId {
        &self.machines[worker].id
    }

    pub(super) fn epoch(&self, worker: usize) -> Epoch {
        self.machines[worker].epoch
    }

    /// The worker of this name.
    pub(super) fn number(&self, id: &WorkerId) -> Option<usize> {
        self.machines.iter().position(|it| it.id == *id)
    }

    /// What a worker registers.
    pub(super) fn registration(&self, worker: usize, model: &ModelName) -> Worker {
        let block_size = self.config.block_size;
        Worker {
            id: self.machines[worker].id.clone(),
            epoch: self.machines[worker].epoch,
            engine: EngineKind::Vllm,
            version: String::new(),
            model: model.clone(),
            start_rank: 0,
            dp_size: self.ranks,
            block_size,
            page_size: block_size,
            kv_blocks: Some(u64::from(self.config.kv_blocks)),
            capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
            state: TargetState::Ready,
            url: String::new(),
            // Its events go to the index without a socket.
            kv_endpoints: KvEndpoints::Zmq(Vec::new()),
            lease_until: Timestamp::from_micros(u64::MAX),
        }
    }

    pub(super) fn is_up(&self, worker: usize) -> bool {
        self.machines[worker].up
    }

    /// Hands a request to its engine; the rank that has it now, none if it refused.
    pub(super) fn submit(&mut self, worker: usize, request: Request) -> Option<DpRank> {
        self.machines[worker].engine.submit(request).ok()
    }

    /// Starts a pass if none is under way and there is work; when it ends.
    pub(super) fn start_pass(&mut self, worker: usize, now: Timestamp) -> Option<Timestamp> {
        let machine = &mut self.machines[worker];
        if machine.ends_at.is_some() {
            return None;
        }
        machine.ends_at = machine.engine.next_pass(now).map(|it| it.ends_at);
        let from = self.from.max(now);
        self.busy += machine.ends_at.map_or(Duration::ZERO, |it| it.since(from));
        machine.ends_at
    }

    /// Ends the pass that ends now; nothing where it was another's, which is no more.
    pub(super) fn end_pass(&mut self, worker: usize, now: Timestamp) -> Option<Vec<Effect>> {
        let machine = &mut self.machines[worker];
        if machine.ends_at != Some(now) {
            return None;
        }
        machine.ends_at = None;
        Some(machine.engine.finish_pass())
    }

    /// A worker dies, and everything in it.
    pub(super) fn kill(&mut self, worker: usize) -> Result<(), InvalidEngine> {
        let fresh = Engine::without_tokens(self.config, self.ranks)?;
        let machine = &mut self.machines[worker];
        add(&mut self.passes, &machine.engine);
        machine.engine = fresh;
        machine.ends_at = None;
        machine.up = false;
        Ok(())
    }

    /// It is back, as another incarnation.
    pub(super) fn revive(&mut self, worker: usize) {
        let machine = &mut self.machines[worker];
        machine.epoch = machine.epoch.next();
        machine.up = true;
    }

    /// What a worker's gauges show; none while it is down.
    pub(super) fn gauges(&self, worker: usize, now: Timestamp) -> Option<Vec<RankLoad>> {
        let machine = &self.machines[worker];
        let rank = |dp_rank| {
            let status = machine.engine.status(dp_rank)?;
            Some(RankLoad {
                dp_rank,
                running: status.running,
                waiting: status.waiting,
                kv_used: status.kv_used,
                at: now,
            })
        };
        let ranks = machine.engine.ranks().filter_map(rank);
        machine.up.then(|| ranks.collect())
    }

    pub(super) fn target(&self, worker: usize, dp_rank: DpRank) -> Target {
        Target {
            worker: self.machines[worker].id.clone(),
            epoch: self.machines[worker].epoch,
            dp_rank,
        }
    }

    /// The share of the time from the warm-up to `now` in which a worker has a pass under way, in the mean of all.
    pub(super) fn busy(&self, now: Timestamp) -> f64 {
        let all = now.since(self.from).as_secs_f64() * self.machines.len() as f64;
        if all > 0.0 {
            self.busy.as_secs_f64() / all
        } else {
            0.0
        }
    }

    /// Passes of all ranks since the start.
    pub(super) fn passes(&self) -> RankPasses {
        let mut passes = self.passes;
        let engines = self.machines.iter().map(|it| &it.engine);
        engines.for_each(|it| add(&mut passes, it));
        passes
    }
}

fn add(passes: &mut RankPasses, engine: &Engine) {
    let more = engine.rank_passes();
    passes.all += more.all;
    passes.idle += more.idle;
}

/// Blocks that a rank has filled, as its event says it. The engine's own names of blocks are their sequence hashes.
pub(super) fn stored(
    content: &Arc<Content>,
    first_block: u32,
    parent: Option<SequenceHash>,
    names: &[SequenceHash],
    namespace: &Namespace,
) -> KvOp {
    let hashes = &content.blocks()[first_block as usize..];
    let blocks = names.iter().zip(hashes);
    let blocks = blocks.map(|(name, block_hash)| StoredBlock {
        engine_hash: engine_hash(*name),
        block_hash: *block_hash,
    });
    KvOp::Stored(StoredBlocks {
        group: 0,
        parent: parent.map(engine_hash),
        blocks: blocks.collect(),
        tier: Tier::Gpu,
        namespace: namespace.clone(),
        session: None,
    })
}

/// Blocks that have left a rank.
pub(super) fn removed(names: Vec<SequenceHash>) -> KvOp {
    KvOp::Removed {
        group: 0,
        engine_hashes: names.into_iter().map(engine_hash).collect(),
        tier: Tier::Gpu,
    }
}

fn engine_hash(block: SequenceHash) -> EngineHash {
    EngineHash::Int(block.get())
}
