//! What an indexer keeps in its own store, as messages of `proto/rankway/store/v1/index.proto`. A part of a
//! rank's base is a [`prefix_index::RankSnapshot`].

use bus::{Generation, Offset};
use domain::{Epoch, EventSeq, KvOp, Target, WorkerId};
use prefix_index::Claims;

/// How far the partitions of `kv-events` have been applied; those not listed are to be read from the
/// beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogCursors(pub Vec<LogCursor>);

/// How far a partition of `kv-events` has been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCursor {
    /// Which partition.
    pub partition: u32,
    /// Which log it is.
    pub generation: Generation,
    /// The last record applied.
    pub offset: Offset,
}

/// The lowest epoch of a worker that is heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The worker.
    pub worker: WorkerId,
    /// The epoch.
    pub epoch: Epoch,
}

/// One target, with its segments up to [`StoredRank::next_segment`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRank {
    /// The target.
    pub target: Target,
    /// The last batch applied; none before the first.
    pub cursor: Option<EventSeq>,
    /// The newest batch known of, where earlier ones are missing.
    pub awaiting: Option<EventSeq>,
    /// How complete its claims are.
    pub claims: Claims,
    /// The number of the first segment not yet written.
    pub next_segment: u64,
}

/// Where a rank's base is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The number its chunks carry.
    pub generation: u64,
    /// How many there are.
    pub chunks: u32,
    /// The first segment that is not in it.
    pub first_segment: u64,
}

/// Operations as they were applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Its place in the order of the rank's segments.
    pub number: u64,
    /// In order.
    pub ops: Vec<KvOp>,
}
