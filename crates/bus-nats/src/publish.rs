//! Sends messages to JetStream so that each is stored once, however often it must be sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Config;
use async_nats::{HeaderMap, header};
use bytes::Bytes;
use tokio::time::Instant;

use crate::TRIED;
use crate::failure::Failure;
use crate::streams::Streams;

/// Gives every message of this process an id that no other has.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    process: Arc<str>,
    next: Arc<AtomicU64>,
}

impl Ids {
    /// Ids that begin with `process`, which no other process has.
    pub(crate) fn new(process: &str) -> Self {
        Self {
            process: process.into(),
            next: Arc::default(),
        }
    }

    pub(crate) fn next(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{}{number}", self.process)
    }
}

/// A message and its id.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) id: String,
    pub(crate) payload: Bytes,
    pub(crate) headers: HeaderMap,
}

impl Outgoing {
    pub(crate) fn new(id: String, payload: Bytes) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_MESSAGE_ID, id.as_str());
        Self {
            id,
            payload,
            headers,
        }
    }

    /// Sends it, and resolves with what will resolve once it is stored.
    pub(crate) async fn send(
        &self,
        streams: &Streams,
        subject: &str,
    ) -> Result<PublishAckFuture, Failure> {
        let message = PublishMessage::build()
            .payload(self.payload.clone())
            .headers(self.headers.clone());
        let sent = streams.jetstream.send_publish(subject.to_owned(), message);
        Ok(sent.await?)
    }

    /// Sends it until it is stored, and resolves with its sequence. The stream is made where it is missing.
    pub(crate) async fn store(
        &self,
        streams: &Streams,
        stream: &Config,
        subject: &str,
    ) -> Result<u64, Failure> {
        let deadline = Instant::now() + TRIED;
        let store = || async {
            let acknowledged = self.send(streams, subject).await?.await;
            let stored = acknowledged.map_err(Failure::from);
            if let Err(Failure::NobodyThere) = stored {
                streams.ensure(stream).await?;
            }
            Ok(stored?.sequence)
        };
        streams.link.persist(deadline, store).await
    }
}

/// Whether something else was stored than the message expected.
pub(crate) fn is_unexpected(failure: &Failure) -> bool {
    let Failure::Refused(error) = failure else {
        return false;
    };
    matches!(
        error.error_code(),
        ErrorCode::STREAM_WRONG_LAST_MESSAGE_ID
            | ErrorCode::STREAM_WRONG_LAST_SEQUENCE
            | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT
    )
}
