//! What an indexer keeps in its own store, as messages of `proto/rankway/store/v1/index.proto`. A part of a
//! rank's base is a [`Chunk`].

use bus::{Generation, Offset};
use domain::{Epoch, EventSeq, KvOp, Namespace, Target, WorkerId};
use prefix_index::{Claims, HeldBlock};

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

/// What counts of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// How far the log had been applied.
    pub cursors: LogCursors,
    /// The first part of the journal.
    pub first_part: u64,
    /// The last part.
    pub last_part: u64,
    /// How many bytes of the last part count.
    pub bytes: u64,
    /// The number of the first part's first frame.
    pub first_frame: u64,
    /// The number of the first frame not yet written.
    pub next_frame: u64,
    /// How many ranks have a base.
    pub bases: u64,
    /// Numbers of ranks that are not there any more, and whose segments do not count.
    pub gone: Vec<u64>,
}

/// One target and where its stream stands.
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
}

/// Where a rank's base is, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Each base of a rank has a higher one.
    pub generation: u64,
    /// The rank as it is in the base.
    pub rank: StoredRank,
    /// The first frame that is not in it.
    pub first_frame: u64,
    /// The length of its file, in bytes.
    pub bytes: u64,
}

/// A part of a base: some blocks of one [`prefix_index::RankSnapshot`]. Its encoding takes 16 bytes a block and
/// little besides where chains are long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// How many blocks the chunks before it have: the place of its first one in the snapshot.
    pub first: u32,
    /// The namespaces that its blocks belong to.
    pub namespaces: Vec<Namespace>,
    /// The blocks. Their namespaces are places in this chunk, their parents places in the snapshot.
    pub blocks: Vec<HeldBlock>,
}

/// What one save has added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Its place in the journal.
    pub number: u64,
    /// What was applied.
    pub segments: Vec<Segment>,
}

/// Operations of one rank as they were applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The rank's number in its store.
    pub number: u64,
    /// Where it stands after them.
    pub rank: StoredRank,
    /// In order.
    pub ops: Vec<KvOp>,
}
