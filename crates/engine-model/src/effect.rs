//! What a pass brought about.

use domain::{DpRank, SequenceHash, Timestamp, Tokens};

use crate::RequestId;

/// One pass of all ranks, under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// When it ends.
    pub ends_at: Timestamp,
}

/// One outcome of a pass. Those of a rank's cache come first, in the order in which they are published:
/// cleared, removed, stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A rank's cache was emptied since its last pass.
    Cleared {
        /// The rank.
        rank: DpRank,
    },
    /// One copy of each block left a rank's cache, children before parents.
    Removed {
        /// The rank.
        rank: DpRank,
        /// Which blocks.
        blocks: Vec<SequenceHash>,
    },
    /// A rank's cache got one more copy of each block, each the child of the one before.
    Stored {
        /// The rank.
        rank: DpRank,
        /// Whose request filled them.
        id: RequestId,
        /// The position of the first one in the request, in blocks from its start.
        first_block: u32,
        /// The block that the first one extends; none at the root.
        parent: Option<SequenceHash>,
        /// The blocks, at least one.
        blocks: Vec<SequenceHash>,
    },
    /// A request began to run for the first time.
    Cached {
        /// The request.
        id: RequestId,
        /// Input tokens it took from the cache.
        tokens: Tokens,
    },
    /// A request was put back in front of the queue, because a rank ran out of blocks. What it has
    /// generated stands; it computes its tokens again.
    Preempted {
        /// The request.
        id: RequestId,
    },
    /// A request generated its first token.
    FirstToken {
        /// The request.
        id: RequestId,
    },
    /// A request generated one more token.
    Token {
        /// The request.
        id: RequestId,
    },
    /// A request generated all its tokens and is gone.
    Finished {
        /// The request.
        id: RequestId,
    },
}
