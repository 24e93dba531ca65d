//! The tables that the indexer watches: who is registered, and which incarnations have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use bus::{Bus, BusError, Change, Changes, Key, Table};
use contracts::topics::{FLEET, INCARNATIONS};
use contracts::{Encoding, FleetEntry};
use domain::{Incarnation, Timestamp, WorkerId};
use futures::StreamExt;
use tracing::warn;

use crate::writer::Writer;

/// How long to wait before a table that could not be watched is tried again.
const WATCH_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// One table, watched again whenever its stream ends.
pub(crate) struct Watched {
    table: Table,
    changes: Option<Changes>,
    watch_at: Timestamp,
    /// Keys seen since the stream began; none once it has caught up.
    seen: Option<BTreeSet<Key>>,
    known: BTreeSet<Key>,
    caught_up: bool,
}

impl Watched {
    pub(crate) fn fleet() -> Self {
        Self::new(FLEET.table)
    }

    pub(crate) fn incarnations() -> Self {
        Self::new(INCARNATIONS.table)
    }

    fn new(table: Table) -> Self {
        Self {
            table,
            changes: None,
            watch_at: Timestamp::ZERO,
            seen: None,
            known: BTreeSet::new(),
            caught_up: false,
        }
    }

    /// Whether the whole table has been seen once.
    pub(crate) fn has_caught_up(&self) -> bool {
        self.caught_up
    }

    /// Begins to watch if it does not, and is due.
    pub(crate) async fn ensure(&mut self, bus: &dyn Bus, now: Timestamp) -> Result<(), BusError> {
        if self.changes.is_some() || now < self.watch_at {
            return Ok(());
        }
        self.watch_at = now + WATCH_AGAIN_AFTER;
        self.changes = Some(bus.watch(&self.table).await?);
        self.seen = Some(BTreeSet::new());
        Ok(())
    }

    /// The next change; none when the stream has ended and must be watched again. Keys that have vanished
    /// while nobody watched come as deletions when the stream has caught up.
    pub(crate) async fn next(&mut self) -> Option<Vec<Change>> {
        let changes = match &mut self.changes {
            Some(changes) => changes,
            None => std::future::pending().await,
        };
        let change = match changes.next().await {
            Some(Ok(change)) => change,
            ended => {
                if let Some(Err(error)) = ended {
                    warn!(table = self.table.0, %error, "watch ended");
                }
                self.changes = None;
                return None;
            }
        };
        Some(self.note(change))
    }

    fn note(&mut self, change: Change) -> Vec<Change> {
        match &change {
            Change::Put(key, _) => {
                self.known.insert(key.clone());
                if let Some(seen) = &mut self.seen {
                    seen.insert(key.clone());
                }
            }
            Change::Deleted(key) => {
                self.known.remove(key);
            }
            Change::CaughtUp => {
                self.caught_up = true;
                let seen = self.seen.take().unwrap_or_default();
                let vanished: Vec<Key> = self.known.difference(&seen).cloned().collect();
                self.known = seen;
                return vanished.into_iter().map(Change::Deleted).collect();
            }
        }
        vec![change]
    }
}

/// Applies changes of `fleet`.
pub(crate) fn registrations(writer: &mut Writer, changes: Vec<Change>, now: Timestamp) {
    for change in changes {
        match change {
            Change::Put(key, entry) => match FleetEntry::heard(&entry.value, &key.0, now) {
                Ok(FleetEntry::Worker(worker)) => writer.register(&worker, now),
                Ok(FleetEntry::Service(_)) => {}
                Err(error) => warn!(?key, %error, "registration refused"),
            },
            Change::Deleted(key) => {
                if let Some(worker) = worker(&key) {
                    writer.deregister(&worker, now);
                }
            }
            Change::CaughtUp => {}
        }
    }
}

/// Applies changes of `incarnations`. A deletion ends nothing.
pub(crate) fn incarnations(writer: &mut Writer, changes: Vec<Change>) {
    for change in changes {
        let Change::Put(key, entry) = change else {
            continue;
        };
        match (worker(&key), Incarnation::from_bytes(&entry.value)) {
            (Some(worker), Ok(incarnation)) => writer.fence(&worker, incarnation.epoch),
            (None, _) => warn!(?key, "incarnation of no worker"),
            (Some(worker), Err(error)) => warn!(%worker, %error, "unreadable incarnation"),
        }
    }
}

fn worker(key: &Key) -> Option<WorkerId> {
    WorkerId::new(std::str::from_utf8(&key.0).ok()?).ok()
}
