//! All that an index holds, as a stream that another one begins with.

use domain::{EventSeq, Target};
use futures::stream::BoxStream;
use prefix_index::{Claims, RankSnapshot};

use super::CallError;
use crate::index_store::{Fence, LogCursors};

/// The items of one dump, in this order: [`DumpItem::Begin`]; for each rank [`DumpItem::Rank`] and its
/// [`DumpItem::Blocks`]; [`DumpItem::End`]. Several dumps may follow each other. A stream that ends elsewhere
/// was broken off.
///
/// Each rank is as it was at one moment between two of its batches, the ranks not all at the same moment. So
/// whoever reads the log on from the cursors at the beginning meets batches that are in the dump already: they
/// are below the rank's own cursor.
pub type DumpStream = BoxStream<'static, Result<DumpItem, CallError>>;

/// One step of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpItem {
    /// How far the log had been applied when the dump began.
    Begin {
        /// Of each partition that the index follows.
        cursors: LogCursors,
        /// The incarnations that are heard.
        fences: Vec<Fence>,
    },
    /// One rank.
    Rank(DumpedRank),
    /// Some of the last named rank's blocks, at most a few thousand.
    Blocks(RankSnapshot),
    /// It is whole.
    End,
}

/// Where one target's stream stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedRank {
    /// The target.
    pub target: Target,
    /// The last batch applied; none before the first.
    pub cursor: Option<EventSeq>,
    /// The newest batch known of, where earlier ones are missing.
    pub awaiting: Option<EventSeq>,
    /// How complete its claims are.
    pub claims: Claims,
}
