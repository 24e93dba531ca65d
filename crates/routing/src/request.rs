//! What a decision is asked for, and what is known of the request.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use affinity::ConversationKey;
use domain::{
    BlockSize, DecisionId, DpRank, Endpoint, ModelName, OverlapGroup, SequenceHash, Target,
    TargetState, Tokens, WorkerId,
};
use placement::Hint;

/// One attempt to place one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The decision's id. A second attempt at the same request may use it again once the first has ended.
    pub id: DecisionId,
    /// The model asked for.
    pub model: ModelName,
    /// The endpoint asked: engines differ in how they take a rank at each.
    pub endpoint: Endpoint,
    /// Input tokens.
    pub isl: Tokens,
    /// Sequence hashes of its full blocks, for each block size of [`crate::Router::block_sizes`]. May be
    /// empty where tokens are unknown.
    pub hashes: Vec<(BlockSize, Vec<SequenceHash>)>,
    /// The conversation, if it has one.
    pub conversation: Option<ConversationKey>,
    /// Where it would rather go, at no price.
    pub hint: Option<Hint>,
    /// Where the request ran that this one goes on with, where nothing else tells that.
    pub lead: Option<Lead>,
    /// Targets at which this request has failed already.
    pub tried: Vec<Target>,
    /// Workers to which this request has found no way. What is bound there stays bound.
    pub no_adapter: Vec<WorkerId>,
    /// The place a client or operator insists on.
    pub pin: Option<Pin>,
}

/// Where an earlier request ran whose whole prompt another begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// There.
    pub target: Target,
    /// Full-block tokens of its prompt, presumed to be held there unless the index knows better.
    pub held: Tokens,
}

/// A place somebody insists on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank; none leaves the rank to the policy.
    pub dp_rank: Option<DpRank>,
}

/// What the index answered for one request in one block size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlapView {
    /// The block size it counts in.
    pub block_size: BlockSize,
    /// Targets that hold at least one leading block, by what they hold.
    pub groups: Vec<OverlapGroup>,
    /// Leading blocks that an earlier request carried or a rank announced.
    pub ceiling: u32,
    /// Leading blocks that a rank ever announced.
    pub stored: u32,
    /// Targets whose claims are not [`TargetState::Ready`].
    pub not_ready: Vec<(Target, TargetState)>,
    /// Ranks of which the answer says nothing, whatever they hold: a part of the index was silent.
    pub unknown: BTreeSet<(WorkerId, DpRank)>,
    /// How far the index is behind the log.
    pub index_age: Duration,
}

/// Why a request has no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTarget {
    /// No worker serves the model.
    #[error("no worker serves model {model}")]
    UnknownModel {
        /// The model asked for.
        model: ModelName,
    },
    /// Workers serve it, but none can take a request now.
    #[error("no target of model {model} can take a request: {}", states(targets))]
    NoneReady {
        /// The model asked for.
        model: ModelName,
        /// How many of its targets are in each state.
        targets: BTreeMap<TargetState, usize>,
    },
    /// The request has failed at every target that could take it.
    #[error("the request failed at all {tried} targets that could take it")]
    AllTried {
        /// How many.
        tried: usize,
    },
    /// The place insisted on is none of the model's, or cannot serve.
    #[error("no such target: choose one of {}", list(valid))]
    InvalidPin {
        /// The targets that can serve.
        valid: Vec<Target>,
    },
}

impl NoTarget {
    /// Whether the same request may find a place later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoneReady { .. } | Self::AllTried { .. } => true,
            Self::UnknownModel { .. } | Self::InvalidPin { .. } => false,
        }
    }
}

fn states(targets: &BTreeMap<TargetState, usize>) -> String {
    if targets.is_empty() {
        return "none is registered".to_owned();
    }
    let counts = targets.iter();
    let texts: Vec<String> = counts
        .map(|(state, count)| format!("{count} {}", state.name()))
        .collect();
    texts.join(", ")
}

fn list(targets: &[Target]) -> String {
    let texts: Vec<String> = targets.iter().map(Target::to_string).collect();
    texts.join(", ")
}
