//! The state of one table in memory, with any number of watchers.
//!
//! It keeps no history: each key stands once in the order of its latest change, so a watcher can always go on
//! from the last revision it saw, however slow it is, and finds the latest of every key.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::sync::watch;

use crate::{BusError, Change, Changes, Entry, Expect, Key, Revision};

/// How many deletions are remembered for watchers that are behind (some MiB with keys of 16 bytes). One that
/// has fallen behind more than these is told to watch again.
const DELETIONS: usize = 65_536;
/// How many changes a watcher takes at once: enough to make the lock cheap, few enough to share it.
const GLANCE_CHANGES: usize = 256;

/// The latest value of every key of one table.
pub struct LiveTable {
    held: Mutex<Held>,
    /// Wakes watchers; carries nothing.
    changed: watch::Sender<()>,
}

struct Held {
    cells: HashSet<ByKey>,
    /// Every cell, by its latest change.
    order: BTreeMap<Revision, Arc<Cell>>,
    /// The cells without a value.
    deletions: BTreeSet<Revision>,
    /// The newest deletion that is no longer remembered.
    forgotten: Revision,
    last: Revision,
    closed: bool,
}

struct Cell {
    key: Key,
    revision: Revision,
    value: Option<Bytes>,
}

/// A cell under its key, of which there is one copy for both orders: tables hold millions.
struct ByKey(Arc<Cell>);

/// Why a watch ends.
#[derive(Debug, thiserror::Error)]
enum WatchEnd {
    #[error("the watcher is more than {DELETIONS} deletions behind")]
    Behind,
    #[error("the table is closed")]
    Closed,
}

impl LiveTable {
    /// An empty table whose revisions grow from `last`.
    pub fn new(last: Revision) -> Self {
        let held = Held {
            cells: HashSet::new(),
            order: BTreeMap::new(),
            deletions: BTreeSet::new(),
            forgotten: last,
            last,
            closed: false,
        };
        Self {
            held: Mutex::new(held),
            changed: watch::Sender::new(()),
        }
    }

    /// The newest revision.
    pub fn last(&self) -> Revision {
        self.lock().last
    }

    /// Makes later revisions be above `floor`.
    pub fn raise(&self, floor: Revision) {
        let mut held = self.lock();
        held.last = held.last.max(floor);
    }

    /// The latest value of `key`.
    pub fn get(&self, key: &Key) -> Option<Entry> {
        self.lock().entry(key)
    }

    /// The revision a write would get, if the current one of `key` is as `expect` says.
    ///
    /// It holds until the next write: for a caller that is the only writer.
    pub fn next(&self, key: &Key, expect: Expect) -> Result<Revision, BusError> {
        self.lock().next(key, expect)
    }

    /// Sets `key` to `value` at `revision`, which is above all others, and wakes the watchers.
    pub fn apply(&self, key: Key, value: Option<Bytes>, revision: Revision) {
        self.lock().apply(key, value, revision);
        self.changed.send_replace(());
    }

    /// [`Self::next`] and [`Self::apply`] in one step.
    pub fn put(
        &self,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        let mut held = self.lock();
        let revision = held.next(&key, expect)?;
        held.apply(key, value, revision);
        drop(held);
        self.changed.send_replace(());
        Ok(revision)
    }

    /// Every key that has a value, in the order of their latest changes, and the newest revision.
    pub fn snapshot(&self) -> (Vec<(Key, Entry)>, Revision) {
        let held = self.lock();
        let cells = held.order.values();
        let entries = cells.filter_map(|cell| Some((cell.key.clone(), cell.entry()?)));
        (entries.collect(), held.last)
    }

    /// Up to 256 changes after `revision`, each with its own revision, the oldest first. `None` if
    /// deletions after it are forgotten.
    pub fn changes_after(&self, revision: Revision) -> Option<Vec<(Revision, Change)>> {
        self.lock().changes_after(revision)
    }

    /// The stream that [`crate::Bus::watch`] returns.
    pub fn watch(self: Arc<Self>) -> Changes {
        let changed = self.changed.subscribe();
        let (entries, seen) = self.snapshot();
        let entries = entries
            .into_iter()
            .map(|(key, entry)| Change::Put(key, entry))
            .chain([Change::CaughtUp])
            .map(Ok);
        let watcher = Watcher {
            table: self,
            changed,
            seen,
        };
        let later = stream::unfold(Some(watcher), |watcher| async move {
            let mut watcher = watcher?;
            match watcher.next().await {
                Ok(changes) => Some((changes.into_iter().map(Ok).collect(), Some(watcher))),
                Err(end) => Some((vec![Err(BusError::Unavailable(end.into()))], None)),
            }
        });
        let later = later.map(|changes: Vec<_>| stream::iter(changes)).flatten();
        stream::iter(entries).chain(later).boxed()
    }

    /// Takes no more changes: watches end once they have yielded what is there.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // No critical section here can panic half-way through a change.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watcher {
    table: Arc<LiveTable>,
    changed: watch::Receiver<()>,
    seen: Revision,
}

impl Watcher {
    async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
        loop {
            self.changed.borrow_and_update();
            let closed = self.table.lock().closed;
            let changes = self.table.changes_after(self.seen);
            let changes = changes.ok_or(WatchEnd::Behind)?;
            if let Some((newest, _)) = changes.last() {
                self.seen = *newest;
                return Ok(changes.into_iter().map(|(_, change)| change).collect());
            }
            if closed || self.changed.changed().await.is_err() {
                return Err(WatchEnd::Closed);
            }
        }
    }
}

impl Held {
    fn entry(&self, key: &Key) -> Option<Entry> {
        self.cells.get(key)?.0.entry()
    }

    fn next(&self, key: &Key, expect: Expect) -> Result<Revision, BusError> {
        let current = self.entry(key).map(|it| it.revision);
        let as_expected = match expect {
            Expect::Any => true,
            Expect::Absent => current.is_none(),
            Expect::At(revision) => current == Some(revision),
        };
        if as_expected {
            Ok(Revision(self.last.0 + 1))
        } else {
            Err(BusError::Conflict { current })
        }
    }

    fn apply(&mut self, key: Key, value: Option<Bytes>, revision: Revision) {
        let deleted = value.is_none();
        let cell = Arc::new(Cell {
            key,
            revision,
            value,
        });
        if let Some(ByKey(former)) = self.cells.replace(ByKey(cell.clone())) {
            self.order.remove(&former.revision);
            self.deletions.remove(&former.revision);
        }
        self.order.insert(revision, cell);
        self.last = revision;
        if deleted {
            self.deletions.insert(revision);
            if DELETIONS < self.deletions.len() {
                self.forget_oldest_deletion();
            }
        }
    }

    fn forget_oldest_deletion(&mut self) {
        if let Some(revision) = self.deletions.pop_first() {
            if let Some(cell) = self.order.remove(&revision) {
                self.cells.remove(&cell.key);
            }
            self.forgotten = revision;
        }
    }

    fn changes_after(&self, revision: Revision) -> Option<Vec<(Revision, Change)>> {
        if revision < self.forgotten {
            return None;
        }
        let later = (Bound::Excluded(revision), Bound::Unbounded);
        let changes = self.order.range(later).map(|(revision, cell)| {
            let key = cell.key.clone();
            let change = match cell.entry() {
                Some(entry) => Change::Put(key, entry),
                None => Change::Deleted(key),
            };
            (*revision, change)
        });
        Some(changes.take(GLANCE_CHANGES).collect())
    }
}

impl Cell {
    fn entry(&self) -> Option<Entry> {
        let value = self.value.clone()?;
        Some(Entry {
            value,
            revision: self.revision,
        })
    }
}

impl Borrow<Key> for ByKey {
    fn borrow(&self) -> &Key {
        &self.0.key
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}
