//! What services say to each other: topics, tables, records and calls, and nothing of how they compute.

mod convert;
mod decision;
pub mod grpc;
pub mod index_store;
mod records;
pub mod rpc;
pub mod topics;
mod wire;

use bytes::Bytes;

pub use decision::{
    Cacheable, DecisionRecord, Digest, EXCERPT, OutcomeRecord, RecordedChoice, RecordedScore,
};
pub use domain::ReservationChange;
pub use records::{FleetEntry, FleetError, LONGEST_LEASE, LoadReport, ReservationBatch};

/// A thing that has a wire form.
pub trait Encoding: Sized {
    /// Its bytes: one protobuf message of `proto/`.
    fn to_bytes(&self) -> Bytes;

    /// Reads it back. Unknown fields are ignored; an unknown variant of a oneof or enum is an error.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError>;
}

/// Why bytes are not what they should be.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// They are no message of this kind.
    #[error("decode {what}")]
    Malformed {
        /// What they should have been.
        what: &'static str,
        /// The cause.
        #[source]
        source: prost::DecodeError,
    },
    /// They are no JSON of this kind.
    #[error("decode {what}")]
    Json {
        /// What they should have been.
        what: &'static str,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A field is missing or holds no valid value.
    #[error("decode {what}: field {field} {why}")]
    Field {
        /// What they should have been.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
}
