//! Ordered logs and compacted tables, whichever broker carries them: six operations and no more.
//!
//! This crate knows bytes, not messages; what the bytes mean is `contracts`. An implementation exists when
//! all of `bus-conformance` passes on it.

mod live_table;
mod memory;
mod ring;
mod types;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

pub use live_table::LiveTable;
pub use memory::MemoryBus;
pub use ring::{Glance, Ring};
pub use types::{
    BusError, Change, Delivered, Entry, Expect, Generation, Key, Layout, LogKind, MAX_KEY_BYTES,
    MAX_RECORD_BYTES, Offset, Partition, Record, Revision, Start, Table, TableKind, TableSpec,
    Tail, TopicSpec,
};

/// The records of one partition, in order.
pub type Records = BoxStream<'static, Result<Delivered, BusError>>;
/// The content of one table and then its changes.
pub type Changes = BoxStream<'static, Result<Change, BusError>>;

/// Six operations that every broker can honour.
///
/// Order holds within a partition. Delivery is at least once: applying a record twice must leave the
/// reader's state as applying it once. A reader keeps its position in its own store under the log's
/// [`Generation`]; another generation means that the log began anew and the reader must resynchronise.
///
/// A topic, partition or table that is not in the bus's [`Layout`] is [`BusError::Unknown`]. A stream ends
/// after its first error; the caller then reads or watches again.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    /// Appends `batch` in order and resolves with the last record's offset.
    ///
    /// On a durable log the records outlive the process once this resolves; on an ephemeral one they reach
    /// whoever reads at the time. After an error any prefix of the batch may have been appended. A record
    /// over [`MAX_RECORD_BYTES`] is refused before anything is appended. An empty batch appends nothing and
    /// resolves with the newest offset, which is `Offset(0)` where there is none: no record has that one.
    async fn append(&self, at: &Partition, batch: Vec<Record>) -> Result<Offset, BusError>;

    /// Yields every record from `start`, in order, at least once, then follows the tail for ever.
    ///
    /// [`BusError::Trimmed`], from the call or from the stream, means that records after `start` are gone.
    /// On an ephemeral log a read begins with what is appended after it, whatever `start` says, and a slow
    /// reader loses the oldest records.
    async fn read(&self, at: &Partition, start: Start) -> Result<Records, BusError>;

    /// The log's generation and its newest record, for lag and readiness.
    async fn tail(&self, at: &Partition) -> Result<Tail, BusError>;

    /// The latest value of `key`.
    async fn get(&self, table: &Table, key: &Key) -> Result<Option<Entry>, BusError>;

    /// Writes `value`, or deletes on `None`, if the current revision is as `expect` says; the write is
    /// durable once this resolves. A conflict leaves the table as it was. Revisions of a key grow, also
    /// across its deletion. No entry has `Revision(0)`, nor the revision of a deletion.
    async fn put(
        &self,
        table: &Table,
        key: Key,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Revision, BusError>;

    /// Yields the whole table, one [`Change::CaughtUp`], then each change, with no gap between.
    ///
    /// A slow watcher may see only the latest of several changes of one key, and always sees that one.
    /// Whoever watches again replaces all that it holds by what it is then given.
    async fn watch(&self, table: &Table) -> Result<Changes, BusError>;
}
