//! The engines of a replay, and what they say of themselves.

use std::sync::Arc;

use domain::{
    BlockSize, Capability, DpRank, EngineHash, EngineKind, Epoch, HeaderSpace, KvEndpoints, KvOp,
    ModelName, Namespace, RankControl, RankLoad, SequenceHash, StoredBlock, StoredBlocks, Target,
    TargetState, Tier, Timestamp, Worker, WorkerId,
};
use engine_model::{Cache, Config, Effect, Engine, InvalidEngine, Request, RequestId};
use placement::Place;

use super::{FleetConfig, number_of};
use crate::{Trace, TraceRequest};

/// Requests one rank runs at a time: vLLM's default.
const MAX_RUNNING: u32 = 256;

pub(super) struct Fleet {
    engines: Vec<(WorkerId, Engine)>,
    /// Whether each engine has a pass under way.
    computing: Vec<bool>,
    kv_blocks: u32,
    dp_size: u32,
    /// The rank each request was put on.
    ranks: Vec<Option<DpRank>>,
}

impl Fleet {
    pub(super) fn new(config: &FleetConfig, block_size: BlockSize) -> Result<Self, InvalidEngine> {
        let model = Config {
            block_size,
            kv_blocks: config.kv_blocks,
            max_running: MAX_RUNNING,
            pass_tokens: config.pass_tokens,
            step: config.step,
            cache: Cache::Blocks,
        };
        let engine = |number: u32| {
            let id = WorkerId::new(&format!("w{number}")).expect("a short plain name");
            Engine::new(model, config.ranks).map(|engine| (id, engine))
        };
        let engines: Result<Vec<_>, _> = (1..=config.workers).map(engine).collect();
        let engines = engines?;
        Ok(Self {
            computing: vec![false; engines.len()],
            engines,
            kv_blocks: config.kv_blocks,
            dp_size: config.ranks,
            ranks: Vec::new(),
        })
    }

    /// What each engine registers.
    pub(super) fn registrations(&self, model: &ModelName, block_size: BlockSize) -> Vec<Worker> {
        let register = |(id, _): &(WorkerId, Engine)| Worker {
            id: id.clone(),
            epoch: Epoch::FIRST,
            engine: EngineKind::Vllm,
            version: String::new(),
            model: model.clone(),
            start_rank: 0,
            dp_size: self.dp_size,
            block_size,
            page_size: block_size,
            kv_blocks: Some(u64::from(self.kv_blocks)),
            capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
            state: TargetState::Ready,
            url: String::new(),
            // Its events go to the index without a socket.
            kv_endpoints: KvEndpoints::Zmq(Vec::new()),
            lease_until: Timestamp::from_micros(u64::MAX),
        };
        self.engines.iter().map(register).collect()
    }

    /// Hands a request to its engine; the number of the worker that has it now, or none if it refused.
    pub(super) fn submit(
        &mut self,
        number: usize,
        request: &TraceRequest,
        place: &Place,
    ) -> Option<usize> {
        let mut engines = self.engines.iter();
        let worker = engines.position(|it| it.0 == *place.worker())?;
        let submitted = self.engines[worker].1.submit(Request {
            id: RequestId::new(number as u64),
            isl: request.isl,
            osl: request.osl,
            chain: Arc::from(request.chain.as_slice()),
            rank: place.target().map(|it| it.dp_rank),
        });
        if number >= self.ranks.len() {
            self.ranks.resize(number + 1, None);
        }
        self.ranks[number] = submitted.ok();
        self.ranks[number].map(|_| worker)
    }

    /// Starts a pass if none is under way and there is work; when it ends.
    pub(super) fn start_pass(&mut self, worker: usize, now: Timestamp) -> Option<Timestamp> {
        if self.computing[worker] {
            return None;
        }
        let pass = self.engines[worker].1.next_pass(now)?;
        self.computing[worker] = true;
        Some(pass.ends_at)
    }

    pub(super) fn end_pass(&mut self, worker: usize) -> Vec<Effect> {
        self.computing[worker] = false;
        self.engines[worker].1.finish_pass()
    }

    /// The rank a request was put on.
    pub(super) fn observed(&self, number: usize) -> Option<DpRank> {
        self.ranks.get(number).copied().flatten()
    }

    /// The target that served a request of `worker`.
    pub(super) fn served_by(&self, number: usize, worker: usize) -> Target {
        let rank = self.observed(number).expect("a served request has a rank");
        self.target(worker, rank)
    }

    fn target(&self, worker: usize, dp_rank: DpRank) -> Target {
        Target {
            worker: self.engines[worker].0.clone(),
            epoch: Epoch::FIRST,
            dp_rank,
        }
    }

    /// A change of a rank's cache as its event says it. The engine's own names of blocks are their sequence
    /// hashes.
    ///
    /// # Panics
    /// If the effect is none of a cache.
    pub(super) fn announce(
        &self,
        worker: usize,
        effect: Effect,
        trace: &Trace,
        namespace: &Namespace,
    ) -> (Target, KvOp) {
        match effect {
            Effect::Stored {
                rank,
                id,
                first_block,
                parent,
                blocks,
            } => {
                let content = &trace.requests[number_of(id)].blocks[first_block as usize..];
                let blocks = blocks.iter().zip(content);
                let stored = StoredBlocks {
                    group: 0,
                    parent: parent.map(engine_hash),
                    blocks: blocks
                        .map(|(name, block_hash)| StoredBlock {
                            engine_hash: engine_hash(*name),
                            block_hash: *block_hash,
                        })
                        .collect(),
                    tier: Tier::Gpu,
                    namespace: namespace.clone(),
                    session: None,
                };
                (self.target(worker, rank), KvOp::Stored(stored))
            }
            Effect::Removed { rank, blocks } => {
                let removed = KvOp::Removed {
                    group: 0,
                    engine_hashes: blocks.into_iter().map(engine_hash).collect(),
                    tier: Tier::Gpu,
                };
                (self.target(worker, rank), removed)
            }
            Effect::Cleared { rank } => (self.target(worker, rank), KvOp::Cleared),
            other => panic!("{other:?} is no change of a cache"),
        }
    }

    /// What each engine's gauges show.
    pub(super) fn gauges(&self, now: Timestamp) -> Vec<(WorkerId, Vec<RankLoad>)> {
        let of = |(id, engine): &(WorkerId, Engine)| {
            let rank = |dp_rank| {
                let status = engine.status(dp_rank).expect("its own rank");
                RankLoad {
                    dp_rank,
                    running: status.running,
                    waiting: status.waiting,
                    kv_used: status.kv_used,
                    at: now,
                }
            };
            (id.clone(), engine.ranks().map(rank).collect())
        };
        self.engines.iter().map(of).collect()
    }

    /// Every target, ascending.
    pub(super) fn targets(&self) -> Vec<Target> {
        let workers = 0..self.engines.len();
        let of = |worker| (0..self.dp_size).map(move |rank| (worker, DpRank::new(rank)));
        let targets = workers.flat_map(of);
        let mut targets: Vec<Target> = targets
            .map(|(worker, rank)| self.target(worker, rank))
            .collect();
        targets.sort();
        targets
    }
}

fn engine_hash(block: SequenceHash) -> EngineHash {
    EngineHash::Int(block.get())
}
