//! Asking who holds a prefix.

use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use domain::{DpRank, Epoch, Namespace, OverlapGroup, SequenceHash, Target, TargetState, WorkerId};

use super::{CallError, DumpStream, Unknown};

/// The indexer.
#[async_trait]
pub trait Index: Send + Sync {
    /// Which targets hold how much of a request's leading blocks.
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError>;

    /// Which ranks of a worker hold a whole prefix. Resolves as soon as one does, or with none at the deadline.
    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError>;

    /// What the index holds of each live target, for comparison with the engines' own truth.
    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError>;

    /// All that the index holds, for an indexer that begins with nothing.
    async fn dump(&self) -> Result<DumpStream, CallError>;
}

/// One request's blocks in one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlapRequest {
    /// Which index to ask.
    pub namespace: Namespace,
    /// The request's full blocks.
    pub hashes: PrefixHashes,
    /// Whether the request joins the namespace's carried set, which later ceilings count.
    pub record: bool,
}

/// A request's full blocks as sequence hashes: all of them, or some that name the rest, because a sequence hash names
/// everything before it too. [`super::overlap_by_sample`] has an exact answer from a sample and a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixHashes {
    /// Each, from the first.
    Dense(Vec<SequenceHash>),
    /// Every so many, and the last. Depths in the answer are multiples of `every`, or the whole request: the
    /// run may go on for less than `every` blocks more.
    Sparse {
        /// Blocks from one hash to the next; the first hash is that of block `every - 1`, counted from 0.
        every: NonZeroU32,
        /// How many full blocks the request has.
        blocks: u32,
        /// One hash for each `every` full blocks, and one for the last block where that is not among them.
        hashes: Vec<SequenceHash>,
    },
    /// The blocks that follow the first `after`, each. The answer is that to all blocks up to the window's end,
    /// ceiling and stored being 0 where they end before it; it says that nobody holds anything where the index does
    /// not know the block before the window. Nothing but the window is recorded.
    Window {
        /// Blocks before the window. Indexes take multiples of 16.
        after: NonZeroU32,
        /// The last of them.
        last: SequenceHash,
        /// Those of the window.
        hashes: Vec<SequenceHash>,
    },
}

/// Blocks from one hash of a sample to the next, and the most of a window: of a million tokens in blocks of 16 a sample
/// is 8 KiB instead of 512, and a window half of one.
pub const SAMPLED: NonZeroU32 = NonZeroU32::new(64).expect("it is not 0");

/// A prefix, looked for on the ranks of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateRequest {
    /// Which index to ask.
    pub namespace: Namespace,
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub epoch: Epoch,
    /// The prefix; [`PrefixHashes::end`] is enough of it.
    pub hashes: PrefixHashes,
    /// How long to wait for a rank that holds it.
    pub deadline: Duration,
}

/// What the index knows of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverlapAnswer {
    /// Targets that hold at least one leading block, by what they hold, deepest first.
    pub groups: Vec<OverlapGroup>,
    /// Leading blocks that any earlier request carried or any rank ever announced.
    pub ceiling: u32,
    /// Leading blocks that any rank ever announced.
    pub stored: u32,
    /// Targets known to the index whose claims are not [`TargetState::Ready`].
    pub not_ready: Vec<(Target, TargetState)>,
    /// The targets of which this answer says nothing: that such a target is in no group does not mean that it
    /// holds nothing.
    pub unknown: Unknown,
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

impl PrefixHashes {
    /// The sample of a request that has all of its sequence hashes: every so many, and the last. An index may
    /// not find a single hash that stands for less than `every` blocks, so of a request that short all are
    /// sent. Indexes take multiples of 16.
    pub fn sparse(dense: &[SequenceHash], every: NonZeroU32) -> Self {
        let step = every.get() as usize;
        if dense.len() <= step {
            return Self::Dense(dense.to_vec());
        }
        let mut hashes: Vec<SequenceHash> =
            dense.iter().skip(step - 1).step_by(step).copied().collect();
        if !dense.len().is_multiple_of(step) {
            hashes.extend(dense.last());
        }
        Self::Sparse {
            every,
            blocks: u32::try_from(dense.len()).unwrap_or(u32::MAX),
            hashes,
        }
    }

    /// The window of [`SAMPLED`] blocks behind the first `after`, which are fewer than there are; all of those where
    /// that is 0.
    pub fn window(dense: &[SequenceHash], after: usize) -> Self {
        let (before, behind) = dense.split_at(after);
        let most = behind.len().min(SAMPLED.get() as usize);
        let hashes = behind[..most].to_vec();
        let after = u32::try_from(after).unwrap_or(u32::MAX);
        match (NonZeroU32::new(after), before.last()) {
            (Some(after), Some(&last)) => Self::Window {
                after,
                last,
                hashes,
            },
            _ => Self::Dense(hashes),
        }
    }

    /// The last window of a request that has all of its sequence hashes, at least one: who holds that holds all.
    pub fn end(dense: &[SequenceHash]) -> Self {
        let step = SAMPLED.get() as usize;
        Self::window(dense, dense.len().saturating_sub(1) / step * step)
    }

    /// How many full blocks the request has, as far as it is told of.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Dense(hashes) => hashes.len(),
            Self::Sparse { blocks, .. } => *blocks as usize,
            Self::Window { after, hashes, .. } => after.get() as usize + hashes.len(),
        }
    }

    /// The last hash sent.
    pub fn last(&self) -> Option<SequenceHash> {
        match self {
            Self::Dense(hashes) | Self::Sparse { hashes, .. } => hashes.last().copied(),
            Self::Window { last, hashes, .. } => Some(*hashes.last().unwrap_or(last)),
        }
    }

    /// How many hashes are sent for them.
    pub fn sent(&self) -> usize {
        match self {
            Self::Dense(hashes) | Self::Sparse { hashes, .. } => hashes.len(),
            Self::Window { hashes, .. } => 1 + hashes.len(),
        }
    }
}
