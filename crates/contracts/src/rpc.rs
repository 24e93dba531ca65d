//! Calls between services. A caller cannot tell whether the other side is in its own process.

mod affinity;
mod dispatch;
mod dump;
mod feed;
mod index;
mod sampled;
mod shard;
mod shards;

pub use self::affinity::{
    Acquire, Affinity, Bound, Confirm, Filter, Move, Page, Reassign, Release, Renew, Search, Unbind,
};
pub use ::affinity::TurnEnd;
pub use dispatch::{
    CallEnd, CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead, RankEvidence,
};
pub use dump::{DumpItem, DumpStream, DumpedRank};
pub use feed::Feed;
pub use index::{
    Index, LocateRequest, OverlapAnswer, OverlapRequest, PrefixHashes, SAMPLED, TargetDigest,
};
pub use sampled::{DENSE_BLOCKS, overlap_by_sample};
pub use shard::{InvalidShard, Shard, Unknown};
pub use shards::Shards;

/// Why a call between services has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The other side is not ready, or was lost during the call, which may or may not have been carried out; the
    /// same call may succeed later.
    #[error("{service} is unavailable: {why}")]
    Unavailable {
        /// Who should have answered.
        service: &'static str,
        /// What is known of the cause.
        why: String,
    },
    /// The call did not get there, so nothing was done.
    #[error("{service} is not reached: {why}")]
    Unreached {
        /// Who should have answered.
        service: &'static str,
        /// What is known of the cause.
        why: String,
    },
    /// No answer within the deadline; it may or may not have been carried out.
    #[error("{service} did not answer in time")]
    DeadlineExceeded {
        /// Who should have answered.
        service: &'static str,
    },
    /// The state is not what the caller took it to be: read it again.
    #[error("{why}")]
    FailedPrecondition {
        /// What is different.
        why: String,
    },
    /// The call makes no sense.
    #[error("{why}")]
    InvalidArgument {
        /// What is wrong with it.
        why: String,
    },
}

impl CallError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Unreached { .. } | Self::DeadlineExceeded { .. } => {
                true
            }
            Self::FailedPrecondition { .. } | Self::InvalidArgument { .. } => false,
        }
    }
}
