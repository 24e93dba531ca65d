//! What crosses the bus, how it is laid out, and how it fails.

use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// The largest record, and the largest key and value together. Twice the largest batch of the contracts,
/// and well below the 1 MiB at which brokers stop unless told otherwise.
pub const MAX_RECORD_BYTES: usize = 512 * 1024;

/// The longest key. It names one thing, which some brokers do in the head of a message, where little fits.
pub const MAX_KEY_BYTES: usize = 512;

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

impl Key {
    /// Refuses a pair of key and value that no bus carries.
    pub fn check(&self, value: Option<&Bytes>) -> Result<(), BusError> {
        let bytes = self.0.len();
        if MAX_KEY_BYTES < bytes {
            return Err(BusError::KeyTooLong { bytes });
        }
        check_size(self.0.len() + value.map_or(0, Bytes::len))
    }
}

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

impl Record {
    /// Refuses what no bus carries.
    pub fn check(&self) -> Result<(), BusError> {
        check_size(self.0.len())
    }
}

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

impl TableSpec {
    /// Refuses what this kind of table does not offer: conditional writes where each key has one writer.
    pub fn check(&self, expect: Expect) -> Result<(), BusError> {
        match (self.kind, expect) {
            (TableKind::Cas, _) | (TableKind::Own, Expect::Any) => Ok(()),
            (TableKind::Own, Expect::Absent | Expect::At(_)) => Err(BusError::Unknown {
                name: format!("conditional write to table {}", self.table.0),
            }),
        }
    }
}

/// Everything a bus must have before a service starts.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The logs.
    pub topics: &'static [TopicSpec],
    /// The tables.
    pub tables: &'static [TableSpec],
}

impl Layout {
    /// What `at` promises, if there is such a partition.
    pub fn topic_of(&self, at: &Partition) -> Result<&'static TopicSpec, BusError> {
        let topic = self.topics.iter().find(|it| it.name == at.topic);
        topic
            .filter(|it| at.index < it.partitions)
            .ok_or_else(|| BusError::Unknown {
                name: format!("partition {} of topic {}", at.index, at.topic),
            })
    }

    /// What `table` promises, if there is such a table.
    pub fn table_of(&self, table: &Table) -> Result<&'static TableSpec, BusError> {
        let spec = self.tables.iter().find(|it| it.table == *table);
        spec.ok_or_else(|| BusError::Unknown {
            name: format!("table {}", table.0),
        })
    }
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
    /// The record, or the key with its value, is over [`MAX_RECORD_BYTES`].
    #[error("a record of {bytes} bytes is over the limit of {MAX_RECORD_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The key is over [`MAX_KEY_BYTES`].
    #[error("a key of {bytes} bytes is over the limit of {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
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
            Self::Conflict { .. }
            | Self::Trimmed { .. }
            | Self::Unknown { .. }
            | Self::TooLarge { .. }
            | Self::KeyTooLong { .. } => false,
        }
    }
}

fn check_size(bytes: usize) -> Result<(), BusError> {
    if MAX_RECORD_BYTES < bytes {
        return Err(BusError::TooLarge { bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_finds_a_key_in_the_same_partition() {
        let topic = TopicSpec {
            name: "t",
            partitions: 16,
            kind: LogKind::Ephemeral,
        };
        for (key, index) in [
            ("w1/0", 10),
            ("w1/1", 6),
            ("127.0.0.1:8000/3", 0),
            ("a-conversation", 5),
            ("", 2),
        ] {
            assert_eq!(topic.partition_of(key).index, index, "{key:?}");
        }
    }
}
