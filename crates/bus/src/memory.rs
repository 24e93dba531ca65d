//! The fake: one process, nothing kept across restarts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};

use crate::ring::closed;
use crate::{
    Bus, BusError, Changes, Delivered, Entry, Expect, Generation, Glance, Key, Layout, LiveTable,
    LogKind, Offset, Partition, Record, Records, Revision, Ring, Start, Table, Tail,
};

/// What one partition of an ephemeral topic holds for readers that are behind: seconds of small gauges.
const EPHEMERAL_BYTES: usize = 1024 * 1024;
/// What one partition of a durable topic holds before the oldest records are trimmed.
const DURABLE_BYTES: usize = 64 * 1024 * 1024;
/// The steps between offsets, in turn: uneven, so that arithmetic on offsets fails in tests.
const STEPS: [u64; 3] = [3, 1, 10];

/// A [`Bus`] in this process's memory. Clones are the same bus.
///
/// A bus by default has any topic and table it is asked for: the topics durable, the tables open to
/// conditional writes. One made with [`MemoryBus::new`] has those of its layout.
#[derive(Clone, Default)]
pub struct MemoryBus {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    layout: Option<Layout>,
    logs: Mutex<HashMap<Partition, Log>>,
    tables: Mutex<HashMap<Table, Arc<LiveTable>>>,
    /// Records that slow readers of ephemeral logs have missed.
    lost: AtomicU64,
}

#[derive(Clone)]
struct Log {
    generation: Generation,
    ring: Arc<Ring>,
}

#[async_trait]
impl Bus for MemoryBus {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        let kind = self.kind(at)?;
        batch.iter().try_for_each(Record::check)?;
        let mut logs = self.logs();
        let ring = &log(&mut logs, at, kind).ring;
        let mut position = ring.end() as usize;
        let mut last = ring.last();
        let delivered: Vec<Delivered> = batch
            .into_iter()
            .map(|record| {
                last = Offset(last.0 + STEPS[position % STEPS.len()]);
                position += 1;
                Delivered {
                    offset: last,
                    record,
                }
            })
            .collect();
        ring.push(delivered);
        Ok(last)
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        let kind = self.kind(at)?;
        let ring = log(&mut self.logs(), at, kind).ring.clone();
        match kind {
            LogKind::Ephemeral => {
                let shared = self.shared.clone();
                Ok(ring.newest(move |missed| {
                    shared.lost.fetch_add(missed, Ordering::Relaxed);
                }))
            }
            LogKind::Durable { .. } => every(ring, start),
        }
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        let kind = self.kind(at)?;
        let log = log(&mut self.logs(), at, kind).clone();
        let last = log.ring.last();
        Ok(Tail {
            generation: log.generation,
            last: (last != Offset(0)).then_some(last),
        })
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        Ok(self.table(table)?.get(key))
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        if let Some(layout) = self.shared.layout {
            layout.table_of(table)?.check(expect)?;
        }
        key.check(value.as_ref())?;
        self.table(table)?.put(key, value, expect)
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        Ok(self.table(table)?.watch())
    }
}

impl MemoryBus {
    /// A bus with the topics and tables of `layout` and no others.
    pub fn new(layout: &Layout) -> Self {
        let shared = Shared {
            layout: Some(*layout),
            ..Shared::default()
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// How many records slow readers of ephemeral logs have missed.
    pub fn lost_records(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Trims the log of `at` up to and including `through`, as retention would.
    pub fn trim(&self, at: &Partition, through: Offset) -> Result<(), BusError> {
        let kind = self.kind(at)?;
        log(&mut self.logs(), at, kind).ring.trim(through);
        Ok(())
    }

    /// Puts an empty log of a new generation in the place of `at`'s; reads of the former one end.
    pub fn begin_anew(&self, at: &Partition) -> Result<(), BusError> {
        let kind = self.kind(at)?;
        let mut logs = self.logs();
        let former = log(&mut logs, at, kind);
        let Generation(generation) = former.generation;
        former.ring.close();
        *former = Log::new(kind, Generation(generation + 1));
        Ok(())
    }

    /// Ends every read and watch, as when a process stops.
    pub fn end_streams(&self) {
        for log in self.logs().values() {
            log.ring.close();
        }
        for table in lock(&self.shared.tables).values() {
            table.close();
        }
    }

    fn kind(&self, at: &Partition) -> Result<LogKind, BusError> {
        match self.shared.layout {
            Some(layout) => Ok(layout.topic_of(at)?.kind),
            None => Ok(LogKind::Durable {
                retention: std::time::Duration::MAX,
            }),
        }
    }

    fn logs(&self) -> MutexGuard<'_, HashMap<Partition, Log>> {
        lock(&self.shared.logs)
    }

    fn table(&self, table: &Table) -> Result<Arc<LiveTable>, BusError> {
        if let Some(layout) = self.shared.layout {
            layout.table_of(table)?;
        }
        let mut tables = lock(&self.shared.tables);
        let table = tables
            .entry(*table)
            .or_insert_with(|| Arc::new(LiveTable::new(Revision(0))));
        Ok(table.clone())
    }
}

impl Log {
    fn new(kind: LogKind, generation: Generation) -> Self {
        let max_bytes = match kind {
            LogKind::Ephemeral => EPHEMERAL_BYTES,
            LogKind::Durable { .. } => DURABLE_BYTES,
        };
        Self {
            generation,
            ring: Arc::new(Ring::new(max_bytes, Offset(0))),
        }
    }
}

/// Everything from `start` on.
fn every(ring: Arc<Ring>, start: Start) -> Result<Records, BusError> {
    let after = match start {
        Start::Earliest => ring.floor(),
        Start::After(offset) => offset,
    };
    if after < ring.floor() {
        return Err(trimmed(&ring));
    }
    let changed = ring.changes();
    let reader = Some((ring, changed, after));
    let batches = stream::unfold(reader, |reader| async move {
        let (ring, mut changed, after) = reader?;
        loop {
            changed.borrow_and_update();
            match ring.after(after) {
                Glance::Records(records) => {
                    let after = records.last().map_or(after, |it| it.offset);
                    let records = records.into_iter().map(Ok).collect();
                    return Some((records, Some((ring, changed, after))));
                }
                Glance::Older => return Some((vec![Err(trimmed(&ring))], None)),
                Glance::Closed => return Some((vec![Err(closed())], None)),
                // The ring owns the sender, so waiting cannot fail while it is here.
                Glance::End => changed.changed().await.ok()?,
            }
        }
    });
    Ok(batches
        .map(|batch: Vec<_>| stream::iter(batch))
        .flatten()
        .boxed())
}

fn trimmed(ring: &Ring) -> BusError {
    BusError::Trimmed {
        oldest: ring.oldest(),
    }
}

fn log<'a>(logs: &'a mut HashMap<Partition, Log>, at: &Partition, kind: LogKind) -> &'a mut Log {
    logs.entry(*at)
        .or_insert_with(|| Log::new(kind, Generation(1)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No critical section here can panic half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
