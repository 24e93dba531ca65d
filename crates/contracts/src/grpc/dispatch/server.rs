//! The adapter's side.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

use super::chunks;
use crate::convert::dispatch_calls::Announced;
use crate::convert::{Wire, wire};
use crate::grpc::{limits, status};
use crate::rpc::{Dispatch, DispatchError, Down};
use wire::up::Part;

pub(in crate::grpc) struct DispatchServer {
    dispatch: Arc<dyn Dispatch>,
    /// One permit for each chunk's worth of [`limits::BODIES`].
    room: Arc<Semaphore>,
}

type Parts = BoxStream<'static, Result<wire::Down, Status>>;

impl DispatchServer {
    pub(in crate::grpc) fn new(dispatch: Arc<dyn Dispatch>) -> Self {
        // 16,384 of them.
        let chunks = limits::BODIES / limits::CHUNK as u64;
        Self {
            dispatch,
            room: Arc::new(Semaphore::new(chunks as usize)),
        }
    }

    /// Room for a body, given back when dropped.
    fn room_for(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Status> {
        if limits::BODY < bytes {
            let limit = limits::BODY as usize;
            let why = status::over_limit("a body", bytes as usize, limit);
            return Err(Status::invalid_argument(why));
        }
        // At most 4,096 of them.
        let chunks = bytes.div_ceil(limits::CHUNK as u64) as u32;
        let room = self.room.clone().try_acquire_many_owned(chunks);
        room.map_err(|_| {
            let limit = limits::BODIES;
            Status::resource_exhausted(format!("the adapter holds {limit} bytes of bodies already"))
        })
    }
}

#[async_trait]
impl wire::dispatch_server::Dispatch for DispatchServer {
    type CallStream = Parts;

    async fn call(&self, request: Request<Streaming<wire::Up>>) -> Result<Response<Parts>, Status> {
        let mut up = request.into_inner();
        let Some(Part::Head(head)) = next(&mut up).await? else {
            return Err(Status::invalid_argument("a call begins with its head"));
        };
        let Announced { head, body_bytes } = status::read(head)?;
        let room = self.room_for(body_bytes)?;
        let body = read_body(&mut up, body_bytes).await?;
        let called = self.dispatch.call(head, body).await;
        let (head, answer) = called.map_err(|error| status::write_dispatch_error(&error))?;
        drop(room);
        let head = wire::down::Part::Head(head.to_wire());
        let parts = stream::iter([Ok(down(head))]).chain(answer.flat_map(to_parts));
        Ok(Response::new(parts.boxed()))
    }
}

/// The next part of a call; its sender has it at hand.
async fn next(up: &mut Streaming<wire::Up>) -> Result<Option<Part>, Status> {
    let part = timeout(limits::STALL, up.message()).await;
    let late = |_| Status::deadline_exceeded("the rest of the call does not come");
    Ok(part.map_err(late)??.and_then(|it| it.part))
}

async fn read_body(up: &mut Streaming<wire::Up>, bytes: u64) -> Result<Bytes, Status> {
    // What is announced need not come: memory is taken as it does. The limit on bodies fits any usize.
    let bytes = bytes as usize;
    let mut body = BytesMut::new();
    loop {
        match next(up).await? {
            Some(Part::Chunk(chunk)) if limits::CHUNK < chunk.len() => {
                let why = status::over_limit("a chunk", chunk.len(), limits::CHUNK);
                return Err(Status::invalid_argument(why));
            }
            Some(Part::Chunk(chunk)) if bytes - body.len() < chunk.len() => {
                let why = format!("the body is longer than the {bytes} bytes announced");
                return Err(Status::invalid_argument(why));
            }
            Some(Part::Chunk(chunk)) => body.extend_from_slice(&chunk),
            Some(Part::End(_)) if body.len() == bytes => return Ok(body.freeze()),
            Some(Part::End(_)) | None => {
                let why = format!("the body ends after {} of {bytes} bytes", body.len());
                return Err(Status::invalid_argument(why));
            }
            Some(Part::Head(_)) => return Err(Status::invalid_argument("a call has one head")),
        }
    }
}

fn down(part: wire::down::Part) -> wire::Down {
    wire::Down { part: Some(part) }
}

/// A step of an answer as it is sent.
fn to_parts(
    step: Result<Down, DispatchError>,
) -> impl Stream<Item = Result<wire::Down, Status>> + Send + 'static {
    let (chunk, last) = match step {
        Ok(Down::Chunk(chunk)) => (chunk, None),
        Ok(Down::End(end)) => {
            let end = wire::down::Part::End(end.to_wire());
            (Bytes::new(), Some(Ok(down(end))))
        }
        Err(error) => (
            Bytes::new(),
            Some(Err(status::write_dispatch_error(&error))),
        ),
    };
    let chunks = chunks(chunk).map(|it| Ok(down(wire::down::Part::Chunk(it))));
    stream::iter(chunks.chain(last))
}
