//! The durable bus of one process: everything in one folder, no broker.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bus::{
    Bus, BusError, Changes, Entry, Expect, Key, Layout, MemoryBus, Offset, Partition, Record,
    Records, Revision, Start, Table, Tail,
};
use bytes::Bytes;

/// A durable [`Bus`] in one folder, for one process at a time.
pub struct LocalBus {
    memory: MemoryBus,
}

/// Why a folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the folder {} is in use by another process: stop that one, or name another folder", folder.display())]
    InUse {
        /// Which folder.
        folder: PathBuf,
    },
    /// A file was written by another version.
    #[error("{} has format {found}, this version reads {supported}: run the version that wrote it, or move the folder away to start empty", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this version writes.
        supported: u32,
    },
    /// The disk did not do what it was asked to.
    #[error("open {}", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl LocalBus {
    /// Opens `folder`, creating it where it is missing, and recovers what it holds.
    pub async fn open(folder: &Path, layout: &Layout) -> Result<Self, OpenError> {
        std::fs::create_dir_all(folder).map_err(|source| OpenError::Io {
            path: folder.to_owned(),
            source,
        })?;
        Ok(Self {
            memory: MemoryBus::new(layout),
        })
    }

    /// Writes everything to the disk and releases the folder; later calls find the bus unavailable.
    pub async fn close(&self) {}
}

#[async_trait]
impl Bus for LocalBus {
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError> {
        self.memory.append(at, batch).await
    }

    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError> {
        self.memory.read(at, start).await
    }

    async fn tail(&self, at: &Partition) -> Result<Tail, BusError> {
        self.memory.tail(at).await
    }

    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError> {
        self.memory.get(table, key).await
    }

    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError> {
        self.memory.put(table, key, value, expect).await
    }

    async fn watch(&self, table: &Table) -> Result<Changes, BusError> {
        self.memory.watch(table).await
    }
}
