//! What the writer knows of one target besides its blocks.

use contracts::index_store::StoredRank;
use contracts::topics;
use domain::{KvOp, Target};
use prefix_index::{Claims, PrefixIndex};

use crate::position::Position;
use crate::store::RankNumber;

/// One target.
pub(crate) struct Tracked {
    pub(crate) number: RankNumber,
    /// The partition of its events.
    pub(crate) partition: u32,
    pub(crate) position: Position,
    /// Whether the store has it. Until then what is applied is for its base alone.
    pub(crate) stored: bool,
    /// Applied and not yet gathered for a save.
    pub(crate) ops: Vec<KvOp>,
    /// Whether anything that is stored of it has changed since the last save.
    pub(crate) changed: bool,
}

impl Tracked {
    pub(crate) fn new(number: RankNumber, target: &Target) -> Self {
        Self {
            number,
            partition: topics::kv_events_of(&target.worker, target.dp_rank).index,
            position: Position::default(),
            stored: true,
            ops: Vec::new(),
            changed: true,
        }
    }

    pub(crate) fn rank(&self, target: &Target, index: &PrefixIndex) -> StoredRank {
        let claims = index.claims(target);
        StoredRank {
            target: target.clone(),
            cursor: self.position.cursor(),
            awaiting: self.position.awaiting(),
            claims: claims.unwrap_or(Claims::Complete),
        }
    }
}
