//! What a world is made of, and what is seen of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    BlockSize, Capability, DpRank, EngineKind, Epoch, HeaderSpace, KvEndpoints, RankControl,
    SequenceHash, Target, TargetState, Timestamp, Worker,
};
use engine_model::StepTime;

pub(crate) const BLOCK: u32 = 16;

/// What the world is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    pub(crate) routers: u32,
    pub(crate) workers: u32,
    pub(crate) ranks: u32,
    pub(crate) step: StepTime,
}

/// One conversation.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// Its turns.
    pub(crate) turns: Vec<Turn>,
    /// When it begins; none to begin when another has ended.
    pub(crate) start: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// A chain that begins with the prompt's full blocks.
    pub(crate) chain: Arc<[SequenceHash]>,
    pub(crate) isl: u64,
    pub(crate) osl: u64,
    /// From the end of the turn before.
    pub(crate) gap: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) turns: u64,
    /// Later turns that ran where the one before did.
    pub(crate) kept: u64,
    pub(crate) requests: BTreeMap<Target, f64>,
    /// Prompt tokens computed.
    pub(crate) work: BTreeMap<Target, f64>,
    /// Uncached tokens of requests without a first token, added up over all looks.
    pub(crate) pending: BTreeMap<Target, f64>,
    /// Bindings that were moved.
    pub(crate) moved: u64,
    /// Prompt tokens of all, and how many of them came from a cache.
    pub(crate) isl: f64,
    pub(crate) cached: f64,
    /// Seconds to the first token.
    pub(crate) ttft: Vec<f64>,
}

pub(crate) fn size() -> BlockSize {
    BlockSize::new(BLOCK).unwrap()
}

pub(crate) fn worker(number: usize, dp_size: u32) -> Worker {
    Worker {
        id: format!("w{number}").parse().unwrap(),
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: String::new(),
        model: "m".parse().unwrap(),
        start_rank: 0,
        dp_size,
        block_size: size(),
        page_size: size(),
        kv_blocks: None,
        capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
        state: TargetState::Ready,
        url: String::new(),
        kv_endpoints: KvEndpoints::Zmq(Vec::new()),
        lease_until: Timestamp::from_secs_f64(1e9),
    }
}

pub(crate) fn target(worker: usize, rank: u32) -> Target {
    Target {
        worker: format!("w{worker}").parse().unwrap(),
        epoch: Epoch::FIRST,
        dp_rank: DpRank::new(rank),
    }
}

/// The most any of `targets` has, over the mean of all.
pub(crate) fn skew(of: &BTreeMap<Target, f64>, targets: f64) -> f64 {
    let most = of.values().copied().fold(0.0, f64::max);
    most * targets / of.values().sum::<f64>()
}
