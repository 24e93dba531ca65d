//! Reading request bodies: each within its limit, all of them within the process's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::error::ApiError;

/// Bytes of request bodies in memory at once; beyond it requests are refused.
const MEMORY_LIMIT: usize = 1 << 30;
/// Memory taken for a body before its first byte, at most.
const FIRST_CAPACITY: usize = 64 << 10;
/// How long a body may pause.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much of a body that is too long is read all the same: a client that is still sending when its
/// connection closes does not see the answer.
const DISCARD_LIMIT: usize = 64 << 20;
/// How long that may take.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Counts the bytes of all request bodies in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget {
    used: Arc<AtomicUsize>,
}

/// A request body and its share of the memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) bytes: Bytes,
    _share: Share,
}

#[derive(Debug)]
struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let before = self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        match before + bytes <= MEMORY_LIMIT {
            true => Ok(()),
            false => Err(ApiError::Overloaded {
                limit: MEMORY_LIMIT,
            }),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    /// Reads a whole body of at most `limit` bytes.
    pub(crate) async fn read(
        &self,
        headers: &HeaderMap,
        mut body: Body,
        limit: usize,
    ) -> Result<Held, ApiError> {
        let announced = headers.get(CONTENT_LENGTH);
        let announced = announced.and_then(|it| it.to_str().ok()?.parse::<usize>().ok());
        if let Some(size) = announced.filter(|size| limit < *size) {
            discard(body).await;
            let size = format!("{size} bytes");
            return Err(ApiError::TooLarge { size, limit });
        }
        let mut share = Share {
            budget: self.clone(),
            bytes: 0,
        };
        // What is announced is not there yet: memory is taken as it comes.
        let mut bytes = BytesMut::with_capacity(announced.unwrap_or(0).min(FIRST_CAPACITY));
        loop {
            let frame = timeout(PATIENCE, body.frame()).await;
            let frame = match frame.map_err(|_| ApiError::Stalled { patience: PATIENCE })? {
                Some(frame) => frame,
                None => break,
            };
            let frame = frame
                .map_err(|error| ApiError::invalid(format!("read the request body: {error}")))?;
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            if limit < bytes.len() + chunk.len() {
                let size = format!("at least {} bytes", bytes.len() + chunk.len());
                discard(body).await;
                return Err(ApiError::TooLarge { size, limit });
            }
            share.grow(chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        Ok(Held {
            bytes: bytes.freeze(),
            _share: share,
        })
    }
}

async fn discard(mut body: Body) {
    let rest = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
            if DISCARD_LIMIT < read {
                return;
            }
        }
    };
    // Whether it was all read or not, the answer is the same.
    let _elapsed = timeout(DISCARD_TIME, rest).await;
}
