//! A table as it changes, read again from the start when the watch breaks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Change, Changes, Entry, Key, Table};
use futures::StreamExt;
use tokio::time::sleep;

/// The wait before a broken watch is begun anew.
const RETRY: Duration = Duration::from_secs(1);

/// One step of a table's history.
#[derive(Debug)]
pub(crate) enum Step {
    Put(Key, Entry),
    Deleted(Key),
    /// Everything that was there has been put; these keys are all there are.
    CaughtUp(BTreeSet<Key>),
}

pub(crate) struct TableReader {
    bus: Arc<dyn Bus>,
    table: Table,
    changes: Option<Changes>,
    /// The keys put since the watch began, until it has caught up.
    seen: BTreeSet<Key>,
}

impl TableReader {
    pub(crate) fn new(bus: Arc<dyn Bus>, table: Table) -> Self {
        Self {
            bus,
            table,
            changes: None,
            seen: BTreeSet::new(),
        }
    }

    /// The next step. May be dropped before it resolves without losing one. Fails only where trying again
    /// is of no use.
    pub(crate) async fn next(&mut self) -> Result<Step, BusError> {
        loop {
            if self.changes.is_none() {
                self.begin().await?;
            }
            let Some(changes) = &mut self.changes else {
                continue;
            };
            match changes.next().await {
                Some(Ok(Change::Put(key, entry))) => {
                    self.seen.insert(key.clone());
                    return Ok(Step::Put(key, entry));
                }
                Some(Ok(Change::Deleted(key))) => {
                    self.seen.remove(&key);
                    return Ok(Step::Deleted(key));
                }
                Some(Ok(Change::CaughtUp)) => {
                    return Ok(Step::CaughtUp(std::mem::take(&mut self.seen)));
                }
                Some(Err(error)) if !error.is_retryable() => return Err(error),
                Some(Err(_)) | None => self.changes = None,
            }
        }
    }

    async fn begin(&mut self) -> Result<(), BusError> {
        match self.bus.watch(&self.table).await {
            Ok(changes) => {
                self.seen.clear();
                self.changes = Some(changes);
                Ok(())
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(table = self.table.0, %error, "watch failed, trying again");
                sleep(RETRY).await;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
