//! The fake: one process, nothing kept across restarts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use tokio::sync::watch;

use crate::{
    Bus, BusError, Change, Changes, Delivered, Entry, Expect, Generation, Key, Offset, Partition,
    Record, Records, Revision, Start, Table, Tail,
};

/// A [`Bus`] in this process's memory.
#[derive(Clone, Default)]
pub struct MemoryBus {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    logs: HashMap<Partition, Arc<History<Record>>>,
    tables: HashMap<Table, TableState>,
}

#[derive(Default)]
struct TableState {
    entries: BTreeMap<Key, Entry>,
    last_revision: u64,
    changes: Arc<History<Change>>,
}

/// An append-only list that readers can follow.
struct History<T> {
    items: Mutex<Vec<T>>,
    len: watch::Sender<usize>,
}

#[async_trait]
impl Bus for MemoryBus {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        let log = self.log(at);
        let len = log.extend(batch);
        Ok(Offset(len as u64))
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        let first = match start {
            Start::Earliest => 0,
            Start::After(Offset(offset)) => offset as usize,
        };
        let records = self.log(at).follow(first).map(|(index, record)| {
            Ok(Delivered {
                offset: Offset(index as u64 + 1),
                record,
            })
        });
        Ok(records.boxed())
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        let len = *self.log(at).len.borrow();
        Ok(Tail {
            generation: Generation(1),
            last: (0 < len).then_some(Offset(len as u64)),
        })
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        let state = lock(&self.state);
        Ok(state
            .tables
            .get(table)
            .and_then(|it| it.entries.get(key))
            .cloned())
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        let mut state = lock(&self.state);
        let table = state.tables.entry(*table).or_default();
        let current = table.entries.get(&key).map(|it| it.revision);
        let as_expected = match expect {
            Expect::Any => true,
            Expect::Absent => current.is_none(),
            Expect::At(revision) => current == Some(revision),
        };
        if !as_expected {
            return Err(BusError::Conflict { current });
        }
        table.last_revision += 1;
        let revision = Revision(table.last_revision);
        let change = match value {
            Some(value) => {
                let entry = Entry { value, revision };
                table.entries.insert(key.clone(), entry.clone());
                Change::Put(key, entry)
            }
            None => {
                table.entries.remove(&key);
                Change::Deleted(key)
            }
        };
        table.changes.extend(vec![change]);
        Ok(revision)
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        let mut state = lock(&self.state);
        let table = state.tables.entry(*table).or_default();
        let snapshot: Vec<Change> = table
            .entries
            .iter()
            .map(|(key, entry)| Change::Put(key.clone(), entry.clone()))
            .chain([Change::CaughtUp])
            .collect();
        let seen = *table.changes.len.borrow();
        let later = table.changes.clone().follow(seen).map(|(_, change)| change);
        Ok(stream::iter(snapshot).chain(later).map(Ok).boxed())
    }
}

impl MemoryBus {
    /// A bus with the topics and tables of `layout` and no others.
    pub fn new(_layout: &crate::Layout) -> Self {
        Self::default()
    }

    fn log(&self, at: &Partition) -> Arc<History<Record>> {
        lock(&self.state).logs.entry(*at).or_default().clone()
    }
}

impl<T> Default for History<T> {
    fn default() -> Self {
        Self {
            items: Mutex::default(),
            len: watch::Sender::new(0),
        }
    }
}

impl<T: Clone + Send + 'static> History<T> {
    fn extend(&self, batch: Vec<T>) -> usize {
        let mut items = lock(&self.items);
        items.extend(batch);
        self.len.send_replace(items.len());
        items.len()
    }

    fn follow(self: Arc<Self>, first: usize) -> impl futures::Stream<Item = (usize, T)> + Send {
        let len = self.len.subscribe();
        stream::unfold((self, len, first), |(history, mut len, next)| async move {
            len.wait_for(|len| next < *len).await.ok()?;
            let item = lock(&history.items)[next].clone();
            Some(((next, item), (history, len, next + 1)))
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No critical section here can panic half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
