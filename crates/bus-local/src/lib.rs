//! The durable bus of one process: everything in one folder, no broker.
//!
//! # What is durable, and when
//!
//! An append or put to a durable topic or a table is acknowledged once the operating system has its bytes. From
//! then on it survives the end of the process, `kill -9` included. Everything written is brought to the disk every
//! 200 ms, so a power cut or a crash of the system loses at most what was acknowledged in the last 200 ms (and
//! while a slow disk finishes the round before). Offsets and revisions are never given twice, also not after such a
//! loss. Ephemeral topics are in memory only.
//!
//! A record cut short by a stop was not acknowledged; it is removed at the next start. A record that is damaged
//! before others is found by its checksum, at the start or by whoever reads it: the segment is cut there, and
//! the log gets a new generation, so that its readers resynchronise. Damaged changes of a table are left out. Both
//! are counted and logged as errors.
//!
//! Records are kept for the retention of their topic, in whole segments, unless the topic has more bytes than
//! [`Limits::topic_bytes`]. A write that fails, because the disk is full or broken, leaves nothing behind and is
//! [`BusError::Unavailable`]; the next may succeed.

mod disk;
mod folder;
mod format;
mod frame;
mod log;
mod open_error;
mod reader;
mod recovery;
mod segment;
mod table;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bus::{
    Bus, BusError, Changes, Entry, Expect, Key, Layout, LiveTable, LogKind, MemoryBus, Offset,
    Partition, Record, Records, Revision, Start, Table, Tail,
};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::disk::Disk;
use crate::log::{Log, LogWriter};
use crate::reader::Reader;
use crate::table::TableWriter;
use crate::writer::{QUEUE, Request, TopicLogs, Writer};

pub use open_error::OpenError;

/// How much a bus keeps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A partition begins a new file when the current one has this many bytes. Only the newest file of each
    /// partition is read when the folder is opened.
    pub segment_bytes: u64,
    /// The oldest files of a topic go when it has more bytes than this, even before their retention ends.
    pub topic_bytes: u64,
    /// What each partition holds in memory for readers that are near its tail.
    pub ring_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            segment_bytes: 8 * MIB as u64,
            topic_bytes: 1024 * MIB as u64,
            ring_bytes: MIB,
        }
    }
}

/// What has happened since the folder was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records of ephemeral topics that slow readers have missed.
    pub lost_ephemeral_records: u64,
    /// Files from which a record that was cut short has been removed.
    pub torn_tails: u64,
    /// Files with a damaged record.
    pub damaged_files: u64,
    /// Writes that failed; nothing of them was kept.
    pub failed_writes: u64,
    /// Files that could not be brought to the disk.
    pub failed_syncs: u64,
    /// Segments removed by retention or the limit of a topic.
    pub trimmed_segments: u64,
    /// Tables rewritten without what is obsolete.
    pub compactions: u64,
}

/// A durable [`Bus`] in one folder, for one process at a time.
///
/// Dropping it closes it in the background; [`LocalBus::close`] waits until the folder is free.
pub struct LocalBus {
    layout: Layout,
    writer: mpsc::Sender<Request>,
    logs: HashMap<Partition, (usize, Arc<Log>)>,
    tables: HashMap<Table, (usize, Arc<LiveTable>)>,
    ephemeral: MemoryBus,
    disk: Arc<Disk>,
}

/// Why nothing more happens.
#[derive(Debug, thiserror::Error)]
#[error("the bus is closed")]
pub(crate) struct Closed;

impl LocalBus {
    /// Opens `folder`, creating it where it is missing, and recovers what it holds.
    pub async fn open(folder: &Path, layout: &Layout) -> Result<Self, OpenError> {
        Self::open_with(folder, layout, Limits::default()).await
    }

    /// [`LocalBus::open`] with other limits.
    pub async fn open_with(
        folder: &Path,
        layout: &Layout,
        limits: Limits,
    ) -> Result<Self, OpenError> {
        let (path, layout) = (folder.to_owned(), *layout);
        let opened = tokio::task::spawn_blocking(move || open(path, layout, limits));
        opened.await.unwrap_or_else(|_| {
            let interrupted = std::io::Error::other("the runtime stopped meanwhile");
            Err(OpenError::io(folder, interrupted))
        })
    }

    /// Brings everything to the disk and releases the folder. Streams end, and later calls find the bus
    /// unavailable.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.writer.send(Request::Close { done }).await.is_ok() {
            // It is dropped unanswered if somebody else has closed the bus meanwhile.
            let _ = closed.await;
        }
    }

    /// What has happened since the folder was opened.
    pub fn counts(&self) -> Counts {
        self.disk.counters.read(self.ephemeral.lost_records())
    }

    fn log(&self, at: &Partition) -> Result<Option<&(usize, Arc<Log>)>, BusError> {
        self.check_open()?;
        self.layout.topic_of(at)?;
        Ok(self.logs.get(at))
    }

    fn table(&self, table: &Table) -> Result<&(usize, Arc<LiveTable>), BusError> {
        self.check_open()?;
        self.layout.table_of(table)?;
        let table = self.tables.get(table);
        Ok(table.expect("every table of the layout has been opened"))
    }

    fn check_open(&self) -> Result<(), BusError> {
        if self.writer.is_closed() {
            return Err(unavailable(Closed));
        }
        Ok(())
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, BusError>>) -> Request,
    ) -> Result<T, BusError> {
        let (done, answer) = oneshot::channel();
        let sent = self.writer.send(request(done)).await;
        sent.map_err(|_| unavailable(Closed))?;
        answer.await.map_err(|_| unavailable(Closed))?
    }
}

#[async_trait]
impl Bus for LocalBus {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        let Some((log, shown)) = self.log(at)? else {
            return self.ephemeral.append(at, batch).await;
        };
        batch.iter().try_for_each(Record::check)?;
        if batch.is_empty() {
            return Ok(shown.ring.last());
        }
        let log = *log;
        self.ask(|done| Request::Append { log, batch, done }).await
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        let Some((index, log)) = self.log(at)? else {
            return self.ephemeral.read(at, start).await;
        };
        let after = match start {
            Start::Earliest => None,
            Start::After(offset) => Some(offset),
        };
        let reader = Reader::new(log.clone(), *index, self.writer.downgrade(), after)?;
        Ok(reader.records())
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        match self.log(at)? {
            Some((_, log)) => Ok(log.tail()),
            None => self.ephemeral.tail(at).await,
        }
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        Ok(self.table(table)?.1.get(key))
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        self.layout.table_of(table)?.check(expect)?;
        key.check(value.as_ref())?;
        let table = self.table(table)?.0;
        self.ask(|done| Request::Put {
            table,
            key,
            value,
            expect,
            done,
        })
        .await
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        Ok(self.table(table)?.1.clone().watch())
    }
}

fn open(path: PathBuf, layout: Layout, limits: Limits) -> Result<LocalBus, OpenError> {
    let lock = folder::lock(&path)?;
    let disk = Arc::new(Disk::new(limits, folder::next_epoch(&path)?));
    let mut logs = Vec::new();
    let mut topics = Vec::new();
    let mut shown_logs = HashMap::new();
    for topic in layout.topics {
        let LogKind::Durable { retention } = topic.kind else {
            continue;
        };
        let first = logs.len();
        for at in topic.all_partitions() {
            let writer = LogWriter::open(folder::of_log(&path, &at)?, &disk)?;
            shown_logs.insert(at, (logs.len(), writer.log.clone()));
            logs.push(writer);
        }
        topics.push(TopicLogs {
            retention,
            logs: first..logs.len(),
        });
    }
    let mut tables = Vec::new();
    let mut shown_tables = HashMap::new();
    for spec in layout.tables {
        let writer = TableWriter::open(folder::of_table(&path, &spec.table)?, &disk)?;
        shown_tables.insert(spec.table, (tables.len(), writer.table.clone()));
        tables.push(writer);
    }
    let ephemeral = MemoryBus::new(&layout);
    let (sender, requests) = mpsc::channel(QUEUE);
    let writer = Writer {
        requests,
        myself: sender.downgrade(),
        logs,
        topics,
        tables,
        ephemeral: ephemeral.clone(),
        disk: disk.clone(),
        lock,
    };
    writer.start().map_err(|it| OpenError::io(&path, it))?;
    Ok(LocalBus {
        layout,
        writer: sender,
        logs: shown_logs,
        tables: shown_tables,
        ephemeral,
        disk,
    })
}

pub(crate) fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BusError {
    BusError::Unavailable(error.into())
}
