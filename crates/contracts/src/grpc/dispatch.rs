//! `dispatch.proto`: bodies in chunks, both ways, only as fast as they are read.

mod client;
mod server;

use bytes::Bytes;

use super::limits;

pub use client::RemoteDispatch;
pub(super) use server::DispatchServer;

/// A body in pieces that may be sent.
fn chunks(mut body: Bytes) -> impl Iterator<Item = Bytes> + Send + 'static {
    std::iter::from_fn(move || {
        let chunk = body.split_to(body.len().min(limits::CHUNK));
        (!chunk.is_empty()).then_some(chunk)
    })
}
