//! One durable partition: what readers see of it, and what the writer does to it.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bus::{BusError, Delivered, Generation, Offset, Record, Ring, Tail};
use bytes::Bytes;
use tokio::time::Instant;

use crate::disk::{Counters, Disk};
use crate::format::StoredRecord;
use crate::recovery::{self, Recovered};
use crate::segment::{self, Ending, Opened, Segment};
use crate::writer::WriteFailed;
use crate::{OpenError, frame};

/// A log that is written all the time begins this many segments in its retention, so that old records can go.
const SEGMENTS_PER_RETENTION: u32 = 8;

/// What readers see of a partition.
pub(crate) struct Log {
    /// The newest records. Whatever it no longer holds is in the segments.
    pub(crate) ring: Arc<Ring>,
    /// Guards the list of segments; held for moments, never while a file is touched.
    view: Mutex<View>,
}

struct View {
    generation: Generation,
    /// The last is being written; there is always one.
    segments: VecDeque<Segment>,
}

impl Log {
    pub(crate) fn tail(&self) -> Tail {
        let last = self.ring.last();
        Tail {
            generation: self.generation(),
            last: (last != Offset(0)).then_some(last),
        }
    }

    pub(crate) fn generation(&self) -> Generation {
        self.view().generation
    }

    /// Reading after it yields everything that is kept.
    pub(crate) fn beginning(&self) -> Offset {
        let view = self.view();
        view.segments.front().map_or(Offset(0), |it| it.base)
    }

    /// The segment that holds what comes after `after`, for a reader that began in generation `seen`.
    pub(crate) fn place(&self, after: Offset, seen: Generation) -> Result<Segment, BusError> {
        let view = self.view();
        let behind = view.segments.partition_point(|it| it.base <= after);
        let found = behind.checked_sub(1).and_then(|it| view.segments.get(it));
        let found = found.filter(|_| view.generation == seen).cloned();
        found.ok_or_else(|| view.trimmed())
    }

    /// Where to go on after `former` is read to its end: there, if it has grown, or in the next segment.
    pub(crate) fn place_behind(
        &self,
        former: &Segment,
        after: Offset,
        seen: Generation,
    ) -> Result<Option<Segment>, BusError> {
        let view = self.view();
        let oldest = view.segments.front();
        let trimmed = oldest.is_some_and(|it| former.number < it.number && after < it.base);
        if view.generation != seen || trimmed {
            return Err(view.trimmed());
        }
        let mut segments = view.segments.iter();
        let next = segments.find(|it| {
            former.number < it.number || (former.number == it.number && former.bytes < it.bytes)
        });
        Ok(next.cloned())
    }

    fn view(&self) -> MutexGuard<'_, View> {
        // No critical section here can panic half-way through a change.
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    fn trimmed(&self) -> BusError {
        BusError::Trimmed {
            oldest: self.segments.iter().find_map(|it| it.first),
        }
    }
}

/// Where a commit went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// Behind the one before.
    InSameSegment,
    /// Into a segment begun for it.
    InNewSegment,
}

/// The writing side of a partition.
pub(crate) struct LogWriter {
    pub(crate) log: Arc<Log>,
    folder: PathBuf,
    /// The segment that is being written; `bytes` of it are whole records.
    active: Segment,
    file: Arc<File>,
    /// Whether the file may be longer than that, because a write failed.
    ragged: bool,
    /// When the active segment was begun, or the folder opened.
    since: Instant,
    last: Offset,
    staged: Vec<Delivered>,
    staged_bytes: Vec<u8>,
}

impl LogWriter {
    /// Opens the log in `folder`, or creates it.
    pub(crate) fn open(folder: PathBuf, disk: &Disk) -> Result<Self, OpenError> {
        let Recovered {
            generation,
            segments,
            last,
        } = recovery::recover(&folder, disk)?;
        let active = segments.back().cloned();
        let active = active.expect("a recovered log has a segment to write");
        let file = recovery::open_to_append(&active);
        let file = Arc::new(file.map_err(|it| OpenError::io(&active.path, it))?);
        let log = Log {
            ring: Arc::new(Ring::new(disk.limits.ring_bytes, last)),
            view: Mutex::new(View {
                generation,
                segments,
            }),
        };
        Ok(Self {
            log: Arc::new(log),
            folder,
            active,
            file,
            ragged: false,
            since: Instant::now(),
            last: last.max(Offset(disk.floor)),
            staged: Vec::new(),
            staged_bytes: Vec::new(),
        })
    }

    /// Takes `batch` for the next [`Self::commit`] and says which offset its last record will have.
    pub(crate) fn stage(&mut self, batch: Vec<Record>) -> Offset {
        for Record(bytes) in batch {
            self.last = Offset(self.last.0 + 1);
            // A copy, so that what the ring holds is no more than what it counts.
            let bytes = Bytes::copy_from_slice(&bytes);
            let stored = StoredRecord {
                offset: self.last.0,
                bytes,
            };
            frame::encode(&stored, &mut self.staged_bytes);
            self.staged.push(Delivered {
                offset: self.last,
                record: Record(stored.bytes),
            });
        }
        self.last
    }

    /// Writes what is staged and shows it to readers, or drops it all and leaves the log as it was.
    pub(crate) fn commit(&mut self, disk: &Disk) -> Result<Committed, WriteFailed> {
        let former = self.active.number;
        let written = self.write_staged(disk);
        self.staged_bytes.clear();
        self.staged_bytes.shrink_to(disk.limits.ring_bytes);
        let records = std::mem::take(&mut self.staged);
        if let Err(error) = written {
            self.ragged = self.file.set_len(self.active.bytes).is_err();
            return Err(WriteFailed::new(&self.active.path, error));
        }
        self.show_active();
        self.log.ring.push(records);
        Ok(if former == self.active.number {
            Committed::InSameSegment
        } else {
            Committed::InNewSegment
        })
    }

    /// Removes what is older than `retention`, and begins a segment if the active one holds old records.
    pub(crate) fn tidy(&mut self, retention: Duration, disk: &Disk) -> io::Result<()> {
        let step = retention / SEGMENTS_PER_RETENTION;
        let stale = step < self.since.elapsed() || retention < segment::age(&self.active.path)?;
        if stale && self.active.first.is_some() {
            self.roll(disk)?;
        }
        while let Some(oldest) = self.oldest_complete() {
            if segment::age(&oldest.path)? <= retention {
                break;
            }
            self.remove_oldest(disk)?;
        }
        Ok(())
    }

    /// The oldest segment, unless it is being written.
    pub(crate) fn oldest_complete(&self) -> Option<Segment> {
        let view = self.log.view();
        let oldest = view.segments.front();
        oldest.filter(|it| it.number != self.active.number).cloned()
    }

    /// Removes the oldest segment, unless it is being written.
    pub(crate) fn remove_oldest(&mut self, disk: &Disk) -> io::Result<()> {
        let Some(oldest) = self.oldest_complete() else {
            return Ok(());
        };
        // Readers first: one that has the file open may finish it.
        self.log.view().segments.pop_front();
        Counters::add(&disk.counters.trimmed_segments);
        fs::remove_file(&oldest.path)?;
        disk.folder_changed(&self.folder)
    }

    /// How many bytes its files have.
    pub(crate) fn bytes(&self) -> u64 {
        self.log.view().segments.iter().map(|it| it.bytes).sum()
    }

    /// Looks into segment `number`, in which a reader has found a broken record, and cuts it there: the log
    /// gets a new generation. Returns whether there was damage.
    pub(crate) fn cut_damage(&mut self, number: u64, disk: &Disk) -> Result<bool, OpenError> {
        let segment = {
            let view = self.log.view();
            view.segments.iter().find(|it| it.number == number).cloned()
        };
        let Some(segment) = segment else {
            return Ok(true);
        };
        let failed = |it| OpenError::io(&segment.path, it);
        let whole = match segment::scan(number, &segment.path)? {
            Opened::Readable(scan) if scan.ending == Ending::Whole => return Ok(false),
            Opened::Readable(scan) => Some(scan.segment),
            Opened::Unborn | Opened::Unreadable => None,
        };
        let next = self.active.number + 1;
        let last = self.log.ring.last();
        let (generation, begun) =
            recovery::begin(&self.folder, next, last, disk).map_err(failed)?;
        let file = recovery::open_to_append(&begun).map_err(failed)?;
        match &whole {
            Some(whole) => recovery::cut_damage(whole, disk).map_err(failed)?,
            None => recovery::set_aside(&segment.path, disk).map_err(failed)?,
        }
        let mut view = self.log.view();
        view.generation = generation;
        view.segments
            .retain(|it| it.number != number || whole.is_some());
        if let Some(whole) = whole
            && let Some(damaged) = view.segments.iter_mut().find(|it| it.number == number)
        {
            *damaged = whole;
        }
        view.segments.push_back(begun.clone());
        drop(view);
        self.write_to(begun, file);
        Ok(true)
    }

    fn write_staged(&mut self, disk: &Disk) -> io::Result<()> {
        if self.ragged {
            self.file.set_len(self.active.bytes)?;
            self.ragged = false;
        }
        if disk.limits.segment_bytes <= self.active.bytes && self.active.first.is_some() {
            self.roll(disk)?;
        }
        (&*self.file).write_all(&self.staged_bytes)?;
        self.active.bytes += self.staged_bytes.len() as u64;
        let first = self.staged.first().map(|it| it.offset);
        self.active.first = self.active.first.or(first);
        disk.written(&self.active.path, &self.file);
        Ok(())
    }

    /// Completes the active segment and begins the next.
    fn roll(&mut self, disk: &Disk) -> io::Result<()> {
        // At the next start only the newest segment is searched for a record cut short.
        self.file.sync_data()?;
        let base = self.log.ring.last();
        let number = self.active.number + 1;
        let generation = self.log.generation();
        let (segment, file) = segment::create(&self.folder, number, generation, base)?;
        self.log.view().segments.push_back(segment.clone());
        self.write_to(segment, file);
        disk.written(&self.active.path, &self.file);
        disk.folder_changed(&self.folder)
    }

    fn write_to(&mut self, segment: Segment, file: File) {
        self.active = segment;
        self.file = Arc::new(file);
        self.ragged = false;
        self.since = Instant::now();
    }

    fn show_active(&self) {
        let mut view = self.log.view();
        if let Some(shown) = view.segments.back_mut() {
            *shown = self.active.clone();
        }
    }
}
