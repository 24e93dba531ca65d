//! What crosses the bus, how it is laid out, and how it fails.

use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// One ordered log within a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The topic.
    pub topic: &'static str,
    /// Which of its partitions.
    pub index: u32,
}

/// A compacted map, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table(pub &'static str);

/// A key within a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub Bytes);

/// A place in a partition. Offsets grow strictly but may skip: never do arithmetic on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(pub u64);

/// The version of a table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// Tells one log from another that took its name: offsets of different generations do not compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(pub u64);

/// The end of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Which log it is.
    pub generation: Generation,
    /// Its newest record.
    pub last: Option<Offset>,
}

/// Bytes to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record(pub Bytes);

/// A record as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Where it stands.
    pub offset: Offset,
    /// What it holds.
    pub record: Record,
}

/// A table entry as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its value.
    pub value: Bytes,
    /// Its version.
    pub revision: Revision,
}

/// Where a read starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the oldest record kept.
    Earliest,
    /// After a record already applied.
    After(Offset),
}

/// What a conditional write takes the current state to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Anything.
    Any,
    /// No entry.
    Absent,
    /// This very version.
    At(Revision),
}

/// One step of a table's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key took a value.
    Put(Key, Entry),
    /// A key was deleted.
    Deleted(Key),
    /// Everything that was there when the watch began has been yielded.
    CaughtUp,
}

/// What a topic promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Kept for `retention` and across restarts.
    Durable {
        /// How long a record is kept at least.
        retention: Duration,
    },
    /// For whoever reads at the time; loss is allowed.
    Ephemeral,
}

/// How a topic is laid out; `contracts` lists the project's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicSpec {
    /// Its name.
    pub name: &'static str,
    /// How many ordered logs it has.
    pub partitions: u32,
    /// What it promises.
    pub kind: LogKind,
}

impl TopicSpec {
    /// The partition of `key`: xxh3-64 of its UTF-8 bytes with seed 0, modulo the partitions. Pinned by a
    /// golden test, because every process must agree.
    pub fn partition_of(&self, key: &str) -> Partition {
        let index = xxh3_64(key.as_bytes()) % u64::from(self.partitions);
        Partition {
            topic: self.name,
            // The remainder is below a u32.
            index: index as u32,
        }
    }

    /// All of its partitions.
    pub fn all_partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        let topic = self.name;
        (0..self.partitions).map(move |index| Partition { topic, index })
    }
}

/// Who writes a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Each key is written by the process it describes, with [`Expect::Any`] only.
    Own,
    /// Writes name the revision they replace.
    Cas,
}

/// How a table is laid out; `contracts` lists the project's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Its name.
    pub table: Table,
    /// Who writes it.
    pub kind: TableKind,
}

/// Everything a bus must have before a service starts.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The logs.
    pub topics: &'static [TopicSpec],
    /// The tables.
    pub tables: &'static [TableSpec],
}

/// Why an operation did not happen.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The table holds another revision than expected.
    #[error("revision conflict, the current revision is {current:?}")]
    Conflict {
        /// What it holds.
        current: Option<Revision>,
    },
    /// The records asked for are no longer kept.
    #[error("records before {oldest:?} have been trimmed")]
    Trimmed {
        /// The oldest kept, if any.
        oldest: Option<Offset>,
    },
    /// The topic, partition or table is not in the bus's layout.
    #[error("the bus has no {name}")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The broker or disk cannot be reached; the same call may succeed later.
    #[error("bus unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl BusError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Conflict { .. } | Self::Trimmed { .. } | Self::Unknown { .. } => false,
        }
    }
}
