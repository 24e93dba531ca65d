//! The one thread that writes: it takes requests in the order in which they come, as many at once as wait, and
//! acknowledges them when the operating system has their bytes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bus::{BusError, Expect, Key, MemoryBus, Offset, Record, Revision};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::disk::{Counters, Disk};
use crate::log::{Committed, LogWriter};
use crate::segment;
use crate::table::{Rewritten, TableWriter};
use crate::unavailable;

/// How many requests wait for the writer before callers do.
pub(crate) const QUEUE: usize = 1024;
/// How many bytes are gathered before they are written, so that the first of them need not wait long.
const ROUND_BYTES: usize = 4 * 1024 * 1024;
/// How many requests are taken before what they staged is written, for the same reason.
const ROUND_REQUESTS: usize = 256;
/// How often what is written is brought to the disk: what a power cut may take.
const SYNCHRONISE_EVERY: Duration = Duration::from_millis(200);
/// How many of these pass between two looks for old records.
const TIDY_EVERY: u32 = 50;

/// What the writer is asked to do.
pub(crate) enum Request {
    Append {
        log: usize,
        batch: Vec<Record>,
        done: oneshot::Sender<Result<Offset, BusError>>,
    },
    Put {
        table: usize,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
        done: oneshot::Sender<Result<Revision, BusError>>,
    },
    /// A reader has found a broken record.
    Damaged {
        log: usize,
        segment: u64,
        done: oneshot::Sender<bool>,
    },
    /// A table has been written anew.
    Rewritten {
        table: usize,
        result: io::Result<Rewritten>,
    },
    Tidy,
    Close {
        done: oneshot::Sender<()>,
    },
}

/// A write that did not happen, told to everyone whose records were in it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("write {}", path.display())]
pub(crate) struct WriteFailed {
    path: PathBuf,
    #[source]
    source: Arc<io::Error>,
}

impl WriteFailed {
    pub(crate) fn new(path: &Path, source: io::Error) -> Self {
        Self {
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }
}

/// The logs of one topic.
pub(crate) struct TopicLogs {
    pub(crate) retention: Duration,
    pub(crate) logs: std::ops::Range<usize>,
}

/// Everything that the thread owns.
pub(crate) struct Writer {
    pub(crate) requests: mpsc::Receiver<Request>,
    pub(crate) myself: mpsc::WeakSender<Request>,
    pub(crate) logs: Vec<LogWriter>,
    pub(crate) topics: Vec<TopicLogs>,
    pub(crate) tables: Vec<TableWriter>,
    pub(crate) ephemeral: MemoryBus,
    pub(crate) disk: Arc<Disk>,
    /// Locked while it is open.
    pub(crate) lock: File,
}

/// An append whose bytes are staged.
struct Waiting {
    log: usize,
    last: Offset,
    done: oneshot::Sender<Result<Offset, BusError>>,
}

impl Writer {
    /// Starts the threads.
    pub(crate) fn start(mut self) -> io::Result<()> {
        self.tidy();
        let (stop, stopped) = std::sync::mpsc::channel();
        let (disk, writer) = (self.disk.clone(), self.myself.clone());
        let metronome = std::thread::Builder::new()
            .name("bus-local-sync".into())
            .spawn(move || synchronise_until(&stopped, &disk, &writer))?;
        std::thread::Builder::new()
            .name("bus-local".into())
            .spawn(move || self.run(stop, metronome))?;
        Ok(())
    }

    fn run(mut self, stop: std::sync::mpsc::Sender<()>, metronome: JoinHandle<()>) {
        let mut closing = None;
        while closing.is_none()
            && let Some(first) = self.requests.blocking_recv()
        {
            closing = self.round(first);
        }
        self.requests.close();
        // What was sent before the end is still done.
        while let Ok(request) = self.requests.try_recv() {
            self.round(request);
        }
        for table in &mut self.tables {
            table.finish();
            table.table.close();
        }
        for log in &self.logs {
            log.log.ring.close();
        }
        self.ephemeral.end_streams();
        drop(stop);
        if metronome.join().is_err() {
            tracing::error!("the thread that synchronises files has panicked");
        }
        self.disk.synchronise();
        // The folder is free before anyone is told so.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "unlocking the folder failed; it is free when the process ends");
        }
        if let Some(done) = closing {
            let _ = done.send(());
        }
    }

    /// Does `first` and what waits behind it. Returns whom to tell when all is closed, if that is asked.
    fn round(&mut self, first: Request) -> Option<oneshot::Sender<()>> {
        let mut waiting = Vec::new();
        let (mut bytes, mut requests) = (0, 0);
        let mut closing = None;
        let mut next = Some(first);
        while let Some(request) = next {
            requests += 1;
            match request {
                Request::Append { log, batch, done } => {
                    bytes += batch.iter().map(|it| it.0.len()).sum::<usize>();
                    let last = self.logs[log].stage(batch);
                    waiting.push(Waiting { log, last, done });
                }
                Request::Put {
                    table,
                    key,
                    value,
                    expect,
                    done,
                } => {
                    let writer = &mut self.tables[table];
                    // Who went away need not be told: the write stands.
                    let _ = done.send(writer.put(key, value, expect, &self.disk));
                    writer.rewrite_if_worthwhile(table, &self.myself);
                }
                Request::Damaged { log, segment, done } => {
                    // A reader that went away will find out when it comes back.
                    let _ = done.send(self.cut_damage(log, segment));
                }
                Request::Rewritten { table, result } => {
                    self.tables[table].take_rewritten(result, &self.disk);
                }
                Request::Tidy => self.tidy(),
                Request::Close { done } => {
                    closing = Some(done);
                    break;
                }
            }
            let full = ROUND_BYTES <= bytes || ROUND_REQUESTS <= requests;
            next = if full {
                None
            } else {
                self.requests.try_recv().ok()
            };
        }
        self.commit(waiting);
        closing
    }

    fn cut_damage(&mut self, log: usize, segment: u64) -> bool {
        let cut = self.logs[log].cut_damage(segment, &self.disk);
        cut.unwrap_or_else(|error| {
            tracing::error!(%error, "looking into a damaged file failed");
            false
        })
    }

    fn commit(&mut self, waiting: Vec<Waiting>) {
        let mut logs: Vec<usize> = waiting.iter().map(|it| it.log).collect();
        logs.sort_unstable();
        logs.dedup();
        let mut failed: Vec<(usize, WriteFailed)> = Vec::new();
        let mut rolled = false;
        for log in logs {
            match self.logs[log].commit(&self.disk) {
                Ok(committed) => rolled |= committed == Committed::InNewSegment,
                Err(error) => {
                    Counters::add(&self.disk.counters.failed_writes);
                    failed.push((log, error));
                }
            }
        }
        for Waiting { log, last, done } in waiting {
            let error = failed.iter().find(|(failed, _)| *failed == log);
            let result = match error {
                None => Ok(last),
                Some((_, error)) => Err(unavailable(error.clone())),
            };
            // Who went away need not be told: the records stand.
            let _ = done.send(result);
        }
        if rolled {
            self.tidy();
        }
    }

    /// Removes what is past its retention or over the limit of its topic.
    fn tidy(&mut self) {
        for topic in &self.topics {
            let logs = &mut self.logs[topic.logs.clone()];
            for log in logs.iter_mut() {
                if let Err(error) = log.tidy(topic.retention, &self.disk) {
                    tracing::warn!(%error, "removing old records failed; tried again soon");
                }
            }
            if let Err(error) = shrink(logs, &self.disk) {
                tracing::warn!(%error, "removing old records failed; tried again soon");
            }
        }
    }
}

/// Removes the oldest complete segments until the topic is within its limit.
fn shrink(logs: &mut [LogWriter], disk: &Disk) -> io::Result<()> {
    let mut bytes: u64 = logs.iter().map(LogWriter::bytes).sum();
    while disk.limits.topic_bytes < bytes {
        let mut oldest: Option<(Duration, usize, u64)> = None;
        for (index, log) in logs.iter().enumerate() {
            let Some(segment) = log.oldest_complete() else {
                continue;
            };
            let age = segment::age(&segment.path)?;
            if oldest.is_none_or(|(oldest, ..)| oldest < age) {
                oldest = Some((age, index, segment.bytes));
            }
        }
        let Some((_, index, removed)) = oldest else {
            break;
        };
        logs[index].remove_oldest(disk)?;
        bytes -= removed;
    }
    Ok(())
}

/// Brings what is written to the disk at every tick, until `stopped` is closed.
fn synchronise_until(
    stopped: &std::sync::mpsc::Receiver<()>,
    disk: &Disk,
    writer: &mpsc::WeakSender<Request>,
) {
    let mut ticks: u32 = 0;
    while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) =
        stopped.recv_timeout(SYNCHRONISE_EVERY)
    {
        disk.synchronise();
        ticks = ticks.wrapping_add(1);
        if ticks.is_multiple_of(TIDY_EVERY)
            && let Some(writer) = writer.upgrade()
        {
            // A full queue means that this can wait for the next time.
            let _ = writer.try_send(Request::Tidy);
        }
    }
}
