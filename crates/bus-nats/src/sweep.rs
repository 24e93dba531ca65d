//! Clears away what is left of deleted keys once no watcher can need it.
//!
//! A deletion must stay until every watcher has seen it. The sweep goes over each table once per
//! [`crate::Settings::deletions_kept`] and clears what was there already the last time; a watcher that is behind for
//! longer than half of that watches again. Only processes that delete sweep, and two that do so at once do no harm.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use crate::counts::Counters;
use crate::failure::Failure;
use crate::follow::Follower;
use crate::pull::Word;
use crate::streams::Streams;
use crate::tables::{TableLog, is_deletion};

/// Sweeps all tables.
pub(crate) struct Sweep {
    pub(crate) streams: Streams,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tables: Vec<Arc<TableLog>>,
    pub(crate) kept: Duration,
}

/// How far a table has been swept.
#[derive(Clone, Copy, Debug, Default)]
struct Swept {
    /// Up to this sequence nothing is left to clear.
    clear: u64,
    /// Up to this one everything will be old enough the next time.
    aged: u64,
}

impl Sweep {
    /// Sweeps for ever.
    pub(crate) async fn run(self) {
        let mut rounds = interval(self.kept);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut swept = vec![Swept::default(); self.tables.len()];
        loop {
            rounds.tick().await;
            for (table, swept) in self.tables.iter().zip(&mut swept) {
                if !table.deletes.load(Ordering::Relaxed) {
                    continue;
                }
                if let Err(failure) = self.sweep(table, swept).await {
                    debug!(table = table.table.0, %failure, "not swept");
                }
            }
        }
    }

    async fn sweep(&self, table: &TableLog, swept: &mut Swept) -> Result<(), Failure> {
        let seen = self.streams.look(&table.config).await?;
        if seen.last < swept.aged {
            // The table began anew.
            *swept = Swept::default();
        }
        let (from, to) = (swept.clear.max(seen.first - 1), swept.aged);
        if from < to {
            for sequence in self.deletions(table, from, to).await? {
                self.streams.remove(&table.config.name, sequence).await?;
                let cleared = &self.counters.cleared_deletions;
                cleared.fetch_add(1, Ordering::Relaxed);
            }
        }
        *swept = Swept {
            clear: to,
            aged: seen.last,
        };
        Ok(())
    }

    /// The deletions behind `from` up to `to`.
    async fn deletions(&self, table: &TableLog, from: u64, to: u64) -> Result<Vec<u64>, Failure> {
        let seen = self.streams.look(&table.config).await?;
        let (name, counters) = (table.config.name.clone(), self.counters.clone());
        let follower = Follower::begin(&self.streams, counters, name, seen, from, true).await?;
        let mut follower = follower.0;
        let mut deletions = Vec::new();
        loop {
            let stored = match follower.next().await {
                Ok(Word::Message(stored)) if stored.sequence <= to => stored,
                Ok(Word::Message(_) | Word::Idle) => return Ok(deletions),
                Err(_) => return Err(Failure::Anew),
            };
            if stored.message.headers.as_ref().is_some_and(is_deletion) {
                deletions.push(stored.sequence);
            }
            if stored.newest {
                return Ok(deletions);
            }
        }
    }
}
