//! Asking who holds a prefix.

use std::time::Duration;

use async_trait::async_trait;
use domain::{DpRank, Epoch, Namespace, OverlapGroup, SequenceHash, Target, TargetState, WorkerId};

use super::CallError;

/// The indexer.
#[async_trait]
pub trait Index: Send + Sync {
    /// Which targets hold how much of a request's leading blocks.
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError>;

    /// Which ranks of a worker hold a prefix. Resolves as soon as one does, or with none at the deadline.
    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError>;

    /// What the index holds of each live target, for comparison with the engines' own truth.
    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError>;
}

/// One request's blocks in one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlapRequest {
    /// Which index to ask.
    pub namespace: Namespace,
    /// The request's full blocks as sequence hashes, from the first.
    pub hashes: Vec<SequenceHash>,
    /// Whether the request joins the namespace's carried set, which later ceilings count.
    pub record: bool,
}

/// A prefix, looked for on the ranks of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateRequest {
    /// Which index to ask.
    pub namespace: Namespace,
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub epoch: Epoch,
    /// The sequence hash of the prefix's last block, which names all of it.
    pub tail: SequenceHash,
    /// How long to wait for a rank that holds it.
    pub deadline: Duration,
}

/// What the index knows of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverlapAnswer {
    /// Targets that hold at least one leading block, by what they hold.
    pub groups: Vec<OverlapGroup>,
    /// Leading blocks that any earlier request carried or any rank ever announced.
    pub ceiling: u32,
    /// Leading blocks that any rank ever announced.
    pub stored: u32,
    /// Targets known to the index whose claims are not [`TargetState::Ready`].
    pub not_ready: Vec<(Target, TargetState)>,
    /// How far the index is behind the log.
    pub index_age: Duration,
}

/// What the index holds of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetDigest {
    /// The target.
    pub target: Target,
    /// Distinct blocks in any tier.
    pub blocks: u64,
    /// The wrapping sum over those blocks of xxh3-64 (seed 0) of the sequence hash as little-endian u64.
    pub digest: u64,
    /// How complete its claims are.
    pub state: TargetState,
}
