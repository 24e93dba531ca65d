//! Reads a durable partition: older records from its files, newer ones from memory, then the tail.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bus::{BusError, Delivered, Generation, Glance, Offset, Records};
use futures::{StreamExt, stream};
use tokio::sync::{mpsc, oneshot, watch};

use crate::frame::FrameReader;
use crate::log::Log;
use crate::segment::{self, Next, Segment};
use crate::writer::Request;
use crate::{Closed, unavailable};

/// How many bytes of records are read from a file in one go, so that a reader holds little.
const BATCH_BYTES: usize = 256 * 1024;

/// One read of a partition.
pub(crate) struct Reader {
    log: Arc<Log>,
    /// Its place among the logs of the writer.
    index: usize,
    writer: mpsc::WeakSender<Request>,
    changed: watch::Receiver<()>,
    /// The generation in which the read began. In a later one records may be missing.
    generation: Generation,
    after: Offset,
    source: Option<Source>,
}

/// An open segment.
struct Source {
    segment: Segment,
    frames: FrameReader,
}

/// What a file has after an offset.
enum Older {
    Records(Vec<Delivered>),
    End,
    Broken,
}

/// Why a read ends.
#[derive(Debug, thiserror::Error)]
enum ReadFailed {
    #[error("read {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("read {}: a record was broken and then it was not", path.display())]
    Unsteady { path: PathBuf },
    #[error("records after {after:?} are neither in memory nor in a file")]
    Missing { after: Offset },
    #[error("read was interrupted")]
    Interrupted,
}

impl Reader {
    /// Begins after `after`, if everything after it is still there.
    pub(crate) fn new(
        log: Arc<Log>,
        index: usize,
        writer: mpsc::WeakSender<Request>,
        after: Option<Offset>,
    ) -> Result<Self, BusError> {
        let generation = log.generation();
        let after = after.unwrap_or_else(|| log.beginning());
        log.place(after, generation)?;
        let changed = log.ring.changes();
        Ok(Self {
            log,
            index,
            writer,
            changed,
            generation,
            after,
            source: None,
        })
    }

    /// Everything from there on.
    pub(crate) fn records(self) -> Records {
        let batches = stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(records) => Some((records.into_iter().map(Ok).collect(), Some(reader))),
                Err(error) => Some((vec![Err(error)], None)),
            }
        });
        batches
            .map(|batch: Vec<_>| stream::iter(batch))
            .flatten()
            .boxed()
    }

    async fn next(&mut self) -> Result<Vec<Delivered>, BusError> {
        loop {
            self.changed.borrow_and_update();
            let records = match self.log.ring.after(self.after) {
                Glance::Records(records) => records,
                Glance::Older => self.older().await?,
                Glance::Closed => return Err(unavailable(Closed)),
                Glance::End => {
                    self.source = None;
                    let changed = self.changed.changed().await;
                    changed.map_err(|_| unavailable(Closed))?;
                    continue;
                }
            };
            if let Some(newest) = records.last() {
                self.after = newest.offset;
                return Ok(records);
            }
        }
    }

    /// Some records from a file, or none after moving on to the next file.
    async fn older(&mut self) -> Result<Vec<Delivered>, BusError> {
        let place = match &self.source {
            Some(source) => source.segment.clone(),
            None => self.log.place(self.after, self.generation)?,
        };
        let (after, source) = (self.after, self.source.take());
        let segment = place.clone();
        let read = tokio::task::spawn_blocking(move || read_from_file(segment, source, after));
        let read = read
            .await
            .map_err(|_| unavailable(ReadFailed::Interrupted))?;
        let (source, older) = match read {
            Ok(read) => read,
            Err(error) => return self.give_up(place, error),
        };
        match older {
            Older::Records(records) => {
                self.source = Some(source);
                Ok(records)
            }
            Older::End => self.move_on(source),
            Older::Broken => self.report(place).await,
        }
    }

    /// Says why a file could not be read: because it was trimmed meanwhile, or else as the system does.
    fn give_up(&self, place: Segment, error: io::Error) -> Result<Vec<Delivered>, BusError> {
        self.log.place(self.after, self.generation)?;
        Err(unavailable(ReadFailed::Io {
            path: place.path,
            source: error,
        }))
    }

    fn move_on(&mut self, mut source: Source) -> Result<Vec<Delivered>, BusError> {
        let next = self
            .log
            .place_behind(&source.segment, self.after, self.generation)?;
        let next = next.ok_or_else(|| unavailable(ReadFailed::Missing { after: self.after }))?;
        self.after = self.after.max(next.base);
        if next.number == source.segment.number {
            source.frames.extend(next.bytes);
            source.segment = next;
            self.source = Some(source);
        } else {
            // Read from its beginning: all of it is behind the former.
            self.source = None;
        }
        Ok(Vec::new())
    }

    /// Tells the writer of a broken record. If it is one, the log has a new generation afterwards, by which
    /// the next step of this read ends it.
    async fn report(&mut self, place: Segment) -> Result<Vec<Delivered>, BusError> {
        let (done, answer) = oneshot::channel();
        let request = Request::Damaged {
            log: self.index,
            segment: place.number,
            done,
        };
        let writer = self.writer.upgrade().ok_or_else(|| unavailable(Closed))?;
        let sent = writer.send(request).await;
        sent.map_err(|_| unavailable(Closed))?;
        match answer.await {
            Ok(true) => Ok(Vec::new()),
            // Another reader was first.
            Ok(false) if self.log.generation() != self.generation => Ok(Vec::new()),
            Ok(false) => Err(unavailable(ReadFailed::Unsteady { path: place.path })),
            Err(_) => Err(unavailable(Closed)),
        }
    }
}

fn read_from_file(
    segment: Segment,
    source: Option<Source>,
    after: Offset,
) -> io::Result<(Source, Older)> {
    let mut source = match source {
        Some(source) => source,
        None => Source {
            frames: segment::reader(&segment)?,
            segment,
        },
    };
    let mut records = Vec::new();
    let mut bytes = 0;
    while bytes < BATCH_BYTES {
        match segment::next_record(&mut source.frames)? {
            Next::Record(delivered) if delivered.offset <= after => {}
            Next::Record(delivered) => {
                bytes += delivered.record.0.len() + size_of::<Delivered>();
                records.push(delivered);
            }
            Next::End | Next::Broken if !records.is_empty() => break,
            Next::End => return Ok((source, Older::End)),
            Next::Broken => return Ok((source, Older::Broken)),
        }
    }
    Ok((source, Older::Records(records)))
}
