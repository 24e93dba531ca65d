//! The router's side.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use domain::WorkerId;
use futures::{StreamExt as _, stream};
use tonic::{Status, Streaming};

use super::chunks;
use crate::DecodeError;
use crate::convert::dispatch_calls::Announced;
use crate::convert::{Wire, wire};
use crate::grpc::connection::{Line, Peer};
use crate::grpc::limits;
use crate::grpc::status::{self, Cause};
use crate::rpc::{CallEnd, CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead};
use wire::dispatch_client::DispatchClient;

/// A worker adapter at an address.
///
/// A call has no deadline, because engines may take minutes before they answer: a caller that has waited long
/// enough drops it. That the adapter is gone shows by its missing signs of life, within
/// [`limits::PING_EVERY`] + [`limits::PING_WITHIN`].
#[derive(Clone, Debug)]
pub struct RemoteDispatch(Peer);

impl RemoteDispatch {
    /// The one at `peer`.
    pub fn new(peer: Peer) -> Self {
        Self(peer)
    }
}

#[async_trait]
impl Dispatch for RemoteDispatch {
    async fn call(
        &self,
        head: CallHead,
        body: Bytes,
    ) -> Result<(HttpHead, CallStream), DispatchError> {
        let worker = head.worker.clone();
        let line = self.0.line().await;
        let line = line.map_err(|why| lost(&self.0, &worker, &status::chain(&*why)))?;
        let answer = DispatchClient::new(line.channel.clone())
            .max_encoding_message_size(limits::DISPATCH_PART)
            .max_decoding_message_size(limits::DISPATCH_PART)
            .call(stream::iter(parts(head, body)))
            .await;
        let parts = match answer {
            Ok(answer) => answer.into_inner(),
            Err(failed) => {
                self.0.notice(&line, &failed);
                let error = status::read_dispatch_error(&failed);
                return Err(error.unwrap_or_else(|| lost_by(&self.0, &worker, &failed)));
            }
        };
        let mut answer = Answer {
            worker: worker.clone(),
            peer: self.0.clone(),
            line: Arc::new(line),
            parts,
        };
        let head = answer.head().await?;
        Ok((head, answer.into_stream()))
    }
}

/// The adapter at `peer`, and nothing of an engine, is the matter.
fn lost(peer: &Peer, worker: &WorkerId, why: &str) -> DispatchError {
    DispatchError::Adapter {
        worker: worker.clone(),
        source: Cause::of(format!("{}: {why}", peer.address())).into(),
    }
}

fn lost_by(peer: &Peer, worker: &WorkerId, failed: &Status) -> DispatchError {
    lost(peer, worker, &Cause::of_status(failed).to_string())
}

/// A call as it is sent.
fn parts(head: CallHead, body: Bytes) -> impl Iterator<Item = wire::Up> + Send + 'static {
    use wire::up::Part;
    let announced = Announced {
        head,
        body_bytes: body.len() as u64,
    };
    let head = std::iter::once_with(move || Part::Head(announced.to_wire()));
    let body = chunks(body).map(Part::Chunk);
    let end = std::iter::once_with(|| Part::End(wire::UpEnd {}));
    let all = head.chain(body).chain(end);
    all.map(|part| wire::Up { part: Some(part) })
}

/// An answer that is coming.
struct Answer {
    worker: WorkerId,
    peer: Peer,
    line: Arc<Line>,
    parts: Streaming<wire::Down>,
}

impl Answer {
    async fn part(&mut self) -> Result<wire::down::Part, DispatchError> {
        let part = match self.parts.message().await {
            Ok(part) => part.and_then(|it| it.part),
            Err(failed) => return Err(self.failed(&failed)),
        };
        part.ok_or_else(|| self.broken(Cause::of("it ended without its end")))
    }

    async fn head(&mut self) -> Result<HttpHead, DispatchError> {
        match self.part().await? {
            wire::down::Part::Head(head) => {
                HttpHead::from_wire(head).map_err(|why| self.senseless(&why))
            }
            _ => Err(self.broken(Cause::of("it began without its head"))),
        }
    }

    async fn next(&mut self) -> Result<Down, DispatchError> {
        use wire::down::Part;
        match self.part().await? {
            Part::Chunk(chunk) if chunk.len() <= limits::CHUNK => Ok(Down::Chunk(chunk)),
            Part::Chunk(chunk) => {
                let why = status::over_limit("a chunk", chunk.len(), limits::CHUNK);
                Err(self.broken(Cause::of(why)))
            }
            Part::End(end) => {
                let end = CallEnd::from_wire(end).map_err(|why| self.senseless(&why))?;
                Ok(Down::End(end))
            }
            Part::Head(_) => Err(self.broken(Cause::of("it has two heads"))),
        }
    }

    fn into_stream(self) -> CallStream {
        let down = stream::unfold(Some(self), |answer| async move {
            let mut answer = answer?;
            match answer.next().await {
                Ok(Down::Chunk(chunk)) => Some((Ok(Down::Chunk(chunk)), Some(answer))),
                end => Some((end, None)),
            }
        });
        down.boxed()
    }

    fn failed(&self, failed: &Status) -> DispatchError {
        self.peer.notice(&self.line, failed);
        let error = status::read_dispatch_error(failed);
        error.unwrap_or_else(|| lost_by(&self.peer, &self.worker, failed))
    }

    fn senseless(&self, why: &DecodeError) -> DispatchError {
        self.broken(Cause::of(status::chain(why)))
    }

    fn broken(&self, cause: Cause) -> DispatchError {
        DispatchError::Broken {
            worker: self.worker.clone(),
            source: cause.into(),
        }
    }
}
