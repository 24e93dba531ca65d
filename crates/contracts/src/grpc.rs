//! The second origin of every call in [`crate::rpc`]: gRPC by address.
//!
//! [`Services`] serves what implements a trait; `Remote*` implement the same traits over a [`Peer`]. A caller
//! cannot tell which it has: errors keep their meaning and their details, streams flow only as fast as they are
//! read, and whatever is dropped is cancelled at the other side.

mod affinity;
mod checked;
mod connection;
mod credentials;
mod dispatch;
mod feed;
mod index;
pub mod limits;
mod services;
mod status;

pub use affinity::RemoteAffinity;
pub use connection::{InvalidPeer, Peer};
pub use credentials::Credentials;
pub use dispatch::RemoteDispatch;
pub use feed::RemoteFeed;
pub use index::RemoteIndex;
pub use services::{Services, server};

/// `proto/` compiled: an encoded `google.protobuf.FileDescriptorSet`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
