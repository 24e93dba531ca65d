//! What the files hold. Every file is a preamble (magic, version) and then frames (`frame.rs`), each with one of
//! these messages. A change that an older version cannot read raises
//! [`VERSION`]; adding a field does not.

use bytes::Bytes;

/// The version of the files that this code writes and reads.
pub(crate) const VERSION: u32 = 1;

/// The only message of the `epoch` file.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FolderHeader {
    /// How often the folder was opened. Offsets and revisions begin with it, so that none is given twice, even
    /// if a power cut took records that somebody had read.
    #[prost(uint64, tag = "1")]
    pub(crate) epoch: u64,
}

/// The first message of a segment.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SegmentHeader {
    /// The generation of the log from this segment on.
    #[prost(fixed64, tag = "1")]
    pub(crate) generation: u64,
    /// The newest offset of the log before this segment, 0 for none.
    #[prost(uint64, tag = "2")]
    pub(crate) base: u64,
}

/// Every other message of a segment.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StoredRecord {
    #[prost(uint64, tag = "1")]
    pub(crate) offset: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) bytes: Bytes,
}

/// Every message of a table.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StoredEntry {
    #[prost(uint64, tag = "1")]
    pub(crate) revision: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
    /// Absent for a deletion.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) value: Option<Bytes>,
}
