//! `GET /worker_info` of the worker in `deploy/trtllm`: what it is, and who places conversations there.

use domain::{ByEndpoint, Capability, FirstRank, RankControl};
use serde::Deserialize;

use crate::gauges::MAX_RANKS;

/// The name by which it calls its engine.
const ENGINE: &str = "tensorrt-llm";

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// TensorRT-LLM's version.
    pub version: String,
    /// How many attention-DP ranks it has.
    pub dp_size: u32,
    /// Tokens per block.
    pub tokens_per_block: u32,
    /// Blocks one rank can hold, once it has run.
    pub kv_blocks: Option<u64>,
    /// Whether it gives KV events.
    pub kv_events: bool,
    /// Who places conversations.
    pub conversations: Conversations,
}

/// Who places the conversations of a TensorRT-LLM on its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversations {
    /// Whoever sends the requests: the engine knows of none.
    Sender,
    /// The engine, from the first turn on.
    Engine,
    /// The sender at the first turn, if the engine is known to keep it; else the engine: a rank that is followed once
    /// and not kept would leave two tables that differ.
    SenderOnce(FirstRank),
}

/// Why an answer is not such a worker's.
#[derive(Debug, thiserror::Error)]
pub enum WorkerInfoError {
    /// It has another shape.
    #[error("read what the worker says of itself")]
    Json(#[from] serde_json::Error),
    /// It runs something else.
    #[error("it runs {engine:?}")]
    Engine {
        /// What it says.
        engine: String,
    },
    /// It has no ranks, or more than any server has.
    #[error("{ranks} ranks are none or more than {MAX_RANKS}")]
    Ranks {
        /// How many.
        ranks: u32,
    },
}

#[derive(Deserialize)]
struct Wire {
    engine: String,
    version: String,
    dp_size: u32,
    tokens_per_block: u32,
    kv_blocks: Option<u64>,
    kv_events: bool,
    conversation_affinity: bool,
    rank_source: RankSource,
    /// None where nobody knows.
    first_rank_recorded: Option<bool>,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum RankSource {
    Engine,
    Router,
}

/// Reads the answer to `GET /worker_info`.
pub fn parse_worker_info(body: &[u8]) -> Result<WorkerInfo, WorkerInfoError> {
    let wire: Wire = serde_json::from_slice(body)?;
    if wire.engine != ENGINE {
        let engine = wire.engine;
        return Err(WorkerInfoError::Engine { engine });
    }
    if wire.dp_size == 0 || MAX_RANKS < wire.dp_size as usize {
        let ranks = wire.dp_size;
        return Err(WorkerInfoError::Ranks { ranks });
    }
    Ok(WorkerInfo {
        conversations: match wire.rank_source {
            _ if !wire.conversation_affinity => Conversations::Sender,
            RankSource::Engine => Conversations::Engine,
            RankSource::Router => Conversations::SenderOnce(match wire.first_rank_recorded {
                Some(true) => FirstRank::SaidKept,
                Some(false) => FirstRank::SaidLost,
                None => FirstRank::Unproven,
            }),
        },
        version: wire.version,
        dp_size: wire.dp_size,
        tokens_per_block: wire.tokens_per_block,
        kv_blocks: wire.kv_blocks,
        kv_events: wire.kv_events,
    })
}

impl Conversations {
    /// What may be asked of a worker that could be asked for `capability` if nobody but the sender placed
    /// conversations.
    pub fn limit(self, dp_size: u32, capability: Capability) -> Capability {
        let (limit, first_rank) = match self {
            Self::Sender => return capability,
            Self::Engine => (RankControl::None, FirstRank::Unasked),
            // The only rank is everybody's.
            Self::SenderOnce(_) if dp_size <= 1 => (RankControl::None, FirstRank::Unasked),
            Self::SenderOnce(it) if it.is_kept() => (RankControl::FirstTurn, it),
            Self::SenderOnce(it) => (RankControl::None, it),
        };
        let control = |endpoint| match *capability.rank_control.get(endpoint) {
            // The only rank is the one that runs.
            RankControl::Strict if 1 < dp_size => limit,
            unlimited => unlimited,
        };
        Capability {
            owns_bindings: true,
            first_rank,
            rank_control: ByEndpoint::of(control),
            ..capability
        }
    }
}
