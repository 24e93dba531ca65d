//! The newest records of one log, in memory and within a bound, with any number of readers.
//!
//! The whole of a log for [`crate::MemoryBus`], the recent tail of one for an implementation that also keeps
//! it elsewhere.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt, stream};
use tokio::sync::watch;

use crate::{BusError, Delivered, Offset, Records};

/// How many records a reader takes at once: enough to make the lock cheap, few enough to share it.
const GLANCE_RECORDS: usize = 256;
/// How many bytes of records a reader takes at once, so that a slow one pins little.
const GLANCE_BYTES: usize = 1024 * 1024;

/// The newest records of one log. It drops the oldest to stay within its bound; the newest always stays.
pub struct Ring {
    held: Mutex<Held>,
    /// Wakes readers; carries nothing.
    changed: watch::Sender<()>,
    max_bytes: usize,
}

struct Held {
    records: VecDeque<Delivered>,
    bytes: usize,
    /// The newest offset that is no longer held.
    floor: Offset,
    /// How many records have left; the position of the oldest held.
    left: u64,
    closed: bool,
}

/// What a reader finds after the records it already has.
#[derive(Debug)]
pub enum Glance {
    /// These come next.
    Records(Vec<Delivered>),
    /// What comes next may have left the ring.
    Older,
    /// Nothing yet.
    End,
    /// Nothing, and nothing will come.
    Closed,
}

/// Why a read ends.
#[derive(Debug, thiserror::Error)]
#[error("the log is closed")]
struct Closed;

impl Ring {
    /// An empty ring that holds up to `max_bytes` of records after `floor`.
    pub fn new(max_bytes: usize, floor: Offset) -> Self {
        let held = Held {
            records: VecDeque::new(),
            bytes: 0,
            floor,
            left: 0,
            closed: false,
        };
        Self {
            held: Mutex::new(held),
            changed: watch::Sender::new(()),
            max_bytes,
        }
    }

    /// Adds `records`, whose offsets grow and are above all others, and wakes the readers.
    pub fn push(&self, records: impl IntoIterator<Item = Delivered>) {
        let mut held = self.lock();
        for record in records {
            held.bytes += weight(&record);
            held.records.push_back(record);
        }
        while self.max_bytes < held.bytes && 1 < held.records.len() {
            held.drop_oldest();
        }
        drop(held);
        self.changed.send_replace(());
    }

    /// Drops the records up to and including `through`.
    pub fn trim(&self, through: Offset) {
        let mut held = self.lock();
        while held.records.front().is_some_and(|it| it.offset <= through) {
            held.drop_oldest();
        }
    }

    /// Takes no more records: readers find [`Glance::Closed`] once they have read what is there.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.send_replace(());
    }

    /// The newest offset that is not held any more; reading after it misses nothing.
    pub fn floor(&self) -> Offset {
        self.lock().floor
    }

    /// The newest offset, held or not.
    pub fn last(&self) -> Offset {
        let held = self.lock();
        held.records.back().map_or(held.floor, |it| it.offset)
    }

    /// The oldest offset held.
    pub fn oldest(&self) -> Option<Offset> {
        self.lock().records.front().map(|it| it.offset)
    }

    /// The position behind the newest record. Positions count records, so two of them tell how many lie
    /// between.
    pub fn end(&self) -> u64 {
        let held = self.lock();
        held.left + held.records.len() as u64
    }

    /// What comes after `offset`.
    pub fn after(&self, offset: Offset) -> Glance {
        let held = self.lock();
        if offset < held.floor {
            return Glance::Older;
        }
        held.glance(held.records.partition_point(|it| it.offset <= offset))
    }

    /// What stands at `position` and behind it, or at the oldest held if that one has left.
    pub fn at(&self, position: u64) -> (u64, Glance) {
        let held = self.lock();
        let found = position.max(held.left);
        let index = usize::try_from(found - held.left).unwrap_or(usize::MAX);
        (found, held.glance(index.min(held.records.len())))
    }

    /// Resolves on each change after it was last asked.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Yields what is pushed from here on, each record with the growing offset that it was pushed with. A reader that
    /// falls out of the ring goes on at the oldest held, and `missed` is told how many it has lost.
    pub fn newest(self: Arc<Self>, missed: impl Fn(u64) + Send + 'static) -> Records {
        let changed = self.changes();
        let position = self.end();
        let reader = Some((self, changed, position, missed));
        let batches = stream::unfold(reader, |reader| async move {
            let (ring, mut changed, position, missed) = reader?;
            loop {
                changed.borrow_and_update();
                let (found, glance) = ring.at(position);
                match glance {
                    Glance::Records(records) => {
                        missed(found - position);
                        let position = found + records.len() as u64;
                        let records = records.into_iter().map(Ok).collect();
                        return Some((records, Some((ring, changed, position, missed))));
                    }
                    Glance::Closed => return Some((vec![Err(closed())], None)),
                    // The ring owns the sender, so waiting cannot fail while it is here.
                    Glance::Older | Glance::End => changed.changed().await.ok()?,
                }
            }
        });
        batches
            .map(|batch: Vec<_>| stream::iter(batch))
            .flatten()
            .boxed()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // No critical section here can panic half-way through a change.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.records.pop_front() {
            self.bytes -= weight(&oldest);
            self.floor = oldest.offset;
            self.left += 1;
        }
    }

    fn glance(&self, from: usize) -> Glance {
        let mut bytes = 0;
        let records: Vec<Delivered> = self
            .records
            .range(from..)
            .take(GLANCE_RECORDS)
            .take_while(|it| {
                let fits = bytes < GLANCE_BYTES;
                bytes += it.record.0.len();
                fits
            })
            .cloned()
            .collect();
        match (records.is_empty(), self.closed) {
            (false, _) => Glance::Records(records),
            (true, false) => Glance::End,
            (true, true) => Glance::Closed,
        }
    }
}

/// A record's bytes, and about what it costs to hold it.
fn weight(record: &Delivered) -> usize {
    record.record.0.len() + size_of::<Delivered>()
}

/// How a read of a ring that takes no more records ends.
pub(crate) fn closed() -> BusError {
    BusError::Unavailable(Box::new(Closed))
}
