//! An indexer that begins with nothing takes up a sibling's dump, and reads the log on from there.
//!
//! A sibling that is silent or breaks off is given up, with all that came from it, and the next one is asked.
//! Without any the log is read from its beginning, as far back as it is kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use contracts::index_store::{LogCursors, StoredRank};
use contracts::rpc::{CallError, DumpItem, DumpedRank, Index, Shard};
use contracts::topics;
use domain::Target;
use futures::StreamExt;
use prefix_index::{PrefixIndex, RankSnapshot};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use crate::store::{Loaded, RankNumber};

/// How long a sibling may be silent between two items: it takes a rank in well under a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a whole dump may take. Longer, and reading the log would have been done too.
const LONGEST: Duration = Duration::from_secs(120);

/// Why a dump was given up.
#[derive(Debug, thiserror::Error)]
enum DumpError {
    /// The sibling says so.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It says nothing, or goes on for ever.
    #[error("it took too long")]
    Late,
    /// It ends in the middle.
    #[error("it broke off")]
    BrokenOff,
    /// What it says makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// What the first sibling that tells everything holds of `shard`; none if there is no such sibling.
pub(crate) async fn from_siblings(
    siblings: &[Arc<dyn Index>],
    shard: Shard,
    departed_blocks: usize,
) -> Option<(PrefixIndex, Loaded)> {
    for (number, sibling) in siblings.iter().enumerate() {
        let mut taking = Taking {
            shard,
            index: PrefixIndex::new(departed_blocks),
            cursors: LogCursors::default(),
            ranks: BTreeMap::new(),
            current: Current::None,
            is_whole: false,
        };
        match taking.all(&**sibling).await {
            Ok(()) => {
                info!(
                    number,
                    ranks = taking.ranks.len(),
                    "took up a sibling's dump"
                );
                let loaded = Loaded {
                    cursors: taking.cursors,
                    next_number: taking.ranks.len() as u64,
                    ranks: taking.ranks,
                };
                return Some((taking.index, loaded));
            }
            Err(why) => warn!(number, %why, "a sibling's dump was given up"),
        }
    }
    None
}

/// A dump while it comes.
struct Taking {
    shard: Shard,
    index: PrefixIndex,
    cursors: LogCursors,
    ranks: BTreeMap<RankNumber, StoredRank>,
    current: Current,
    is_whole: bool,
}

/// Whose blocks come.
enum Current {
    None,
    Own(Target),
    /// Of a rank that another shard follows.
    Other,
}

impl Taking {
    async fn all(&mut self, sibling: &dyn Index) -> Result<(), DumpError> {
        let end = Instant::now() + LONGEST;
        let deadline = || end.min(Instant::now() + PATIENCE);
        let dump = timeout_at(deadline(), sibling.dump()).await;
        let mut dump = dump.map_err(|_| DumpError::Late)??;
        loop {
            let item = timeout_at(deadline(), dump.next()).await;
            match item.map_err(|_| DumpError::Late)? {
                Some(item) => self.take(item?)?,
                None if self.is_whole => return Ok(()),
                None => return Err(DumpError::BrokenOff),
            }
            // A dump of this process is never pending, and others share the thread.
            tokio::task::yield_now().await;
        }
    }

    fn take(&mut self, item: DumpItem) -> Result<(), DumpError> {
        self.is_whole = false;
        match item {
            DumpItem::Begin { cursors, fences } => {
                let own = cursors.0.into_iter();
                let own = own.filter(|it| self.shard.follows(it.partition));
                self.cursors.0.extend(own);
                for fence in fences {
                    self.index.fence(&fence.worker, fence.epoch);
                }
            }
            DumpItem::Rank(rank) => self.begin(rank)?,
            DumpItem::Blocks(snapshot) => match &self.current {
                Current::Own(target) => restore(&mut self.index, target, &snapshot)?,
                Current::Other => {}
                Current::None => {
                    return Err(DumpError::Invalid("it has blocks of no rank".to_owned()));
                }
            },
            DumpItem::End => {
                self.current = Current::None;
                self.is_whole = true;
            }
        }
        Ok(())
    }

    fn begin(&mut self, rank: DumpedRank) -> Result<(), DumpError> {
        let partition = topics::kv_events_of(&rank.target.worker, rank.target.dp_rank);
        let known = || self.ranks.values().any(|it| it.target == rank.target);
        if !self.shard.follows(partition.index) || known() {
            self.current = Current::Other;
            return Ok(());
        }
        let claims = RankSnapshot {
            claims: rank.claims,
            namespaces: Vec::new(),
            blocks: Vec::new(),
        };
        restore(&mut self.index, &rank.target, &claims)?;
        let number = RankNumber(self.ranks.len() as u64);
        let stored = StoredRank {
            target: rank.target.clone(),
            cursor: rank.cursor,
            awaiting: rank.awaiting,
            claims: rank.claims,
        };
        self.ranks.insert(number, stored);
        self.current = Current::Own(rank.target);
        Ok(())
    }
}

fn restore(
    index: &mut PrefixIndex,
    target: &Target,
    snapshot: &RankSnapshot,
) -> Result<(), DumpError> {
    let restored = index.restore(target, snapshot);
    restored.map_err(|why| DumpError::Invalid(why.to_string()))
}
