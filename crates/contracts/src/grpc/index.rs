//! `index.proto`.

use std::sync::Arc;

use async_trait::async_trait;
use domain::DpRank;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

use super::checked::Checked;
use super::connection::{Line, Peer};
use super::{limits, status};
use crate::DecodeError;
use crate::convert::{Wire, wire};
use crate::rpc::{
    CallError, DumpItem, DumpStream, Index, LocateRequest, OverlapAnswer, OverlapRequest,
    TargetDigest, overlap_by_sample,
};
use wire::index_client::IndexClient;

const SERVICE: &str = "indexer";

/// An indexer at an address.
#[derive(Clone, Debug)]
pub struct RemoteIndex(Peer);

impl RemoteIndex {
    /// The one at `peer`.
    pub fn new(peer: Peer) -> Self {
        Self(peer)
    }
}

fn client(channel: Checked) -> IndexClient<Checked> {
    IndexClient::new(channel)
        .max_encoding_message_size(limits::INDEX_REQUEST)
        .max_decoding_message_size(limits::INDEX_ANSWER)
}

#[async_trait]
impl Index for RemoteIndex {
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        overlap_by_sample(request, |request| self.overlap_as_asked(request)).await
    }

    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        let patience = request.deadline.saturating_add(limits::LOOKUP);
        let limits = (patience.min(LONGEST_WAIT), limits::INDEX_REQUEST);
        let answered = self
            .0
            .call(SERVICE, limits, &request, |channel, request| async move {
                client(channel).locate(request).await
            });
        answered.await
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        let limits = (limits::VERIFY, limits::INDEX_REQUEST);
        let answered = self
            .0
            .call(SERVICE, limits, &Verify, |channel, request| async move {
                client(channel).verify(request).await
            });
        answered.await.map(|Digests(digests)| digests)
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        let begun = timeout(limits::VERIFY, async {
            let line = self.0.line().await;
            let line = line.map_err(|why| status::unreached(SERVICE, self.0.address(), &*why))?;
            let answer = client(line.channel.clone())
                .dump(wire::DumpRequest {})
                .await;
            match answer {
                Ok(answer) => Ok((line, answer.into_inner())),
                Err(failed) => Err(self.failed(&line, &failed)),
            }
        });
        let begun = begun.await;
        let late = CallError::DeadlineExceeded { service: SERVICE };
        let (line, items) = begun.unwrap_or(Err(late))?;
        let dump = Dump {
            index: self.clone(),
            line,
            items,
        };
        let items = stream::unfold(Some(dump), |dump| async move {
            let mut dump = dump?;
            match dump.next().await? {
                Ok(item) => Some((Ok(item), Some(dump))),
                Err(failed) => Some((Err(failed), None)),
            }
        });
        Ok(items.boxed())
    }
}

/// The longest wait of a call to locate. The caller's own patience is below a second.
const LONGEST_WAIT: std::time::Duration = std::time::Duration::from_secs(60);

impl RemoteIndex {
    async fn overlap_as_asked(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        let limits = (limits::LOOKUP, limits::INDEX_REQUEST);
        let answered = self
            .0
            .call(SERVICE, limits, &request, |channel, request| async move {
                client(channel).overlap(request).await
            });
        answered.await
    }

    fn failed(&self, line: &Line, failed: &Status) -> CallError {
        self.0.notice(line, failed);
        status::read_call_error(SERVICE, self.0.address(), failed)
    }
}

/// A dump that is coming.
struct Dump {
    index: RemoteIndex,
    line: Line,
    items: Streaming<wire::DumpItem>,
}

impl Dump {
    async fn next(&mut self) -> Option<Result<DumpItem, CallError>> {
        let Ok(item) = timeout(limits::STALL, self.items.message()).await else {
            return Some(Err(CallError::DeadlineExceeded { service: SERVICE }));
        };
        match item {
            Ok(item) => item.map(|item| {
                DumpItem::from_wire(item).map_err(|why| CallError::Unavailable {
                    service: SERVICE,
                    why: status::chain(&why),
                })
            }),
            Err(failed) => Some(Err(self.index.failed(&self.line, &failed))),
        }
    }
}

struct Verify;

impl Wire for Verify {
    const WHAT: &'static str = "verify";
    type Message = wire::VerifyRequest;

    fn to_wire(&self) -> wire::VerifyRequest {
        wire::VerifyRequest {}
    }

    fn from_wire(_: wire::VerifyRequest) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}

/// What an index holds of all targets.
struct Digests(Vec<TargetDigest>);

impl Wire for Digests {
    const WHAT: &'static str = "digests";
    type Message = wire::VerifyAnswer;

    fn to_wire(&self) -> wire::VerifyAnswer {
        wire::VerifyAnswer {
            digests: self.0.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: wire::VerifyAnswer) -> Result<Self, DecodeError> {
        let digests = message.digests.into_iter().map(TargetDigest::from_wire);
        digests.collect::<Result<_, _>>().map(Self)
    }
}

pub(super) struct IndexServer(pub(super) Arc<dyn Index>);

#[async_trait]
impl wire::index_server::Index for IndexServer {
    type DumpStream = BoxStream<'static, Result<wire::DumpItem, Status>>;

    async fn overlap(
        &self,
        request: Request<wire::OverlapRequest>,
    ) -> Result<Response<wire::OverlapAnswer>, Status> {
        let request = status::read(request.into_inner())?;
        status::write_answer(self.0.overlap(request).await, limits::INDEX_ANSWER)
    }

    async fn locate(
        &self,
        request: Request<wire::LocateRequest>,
    ) -> Result<Response<wire::LocateAnswer>, Status> {
        let request = status::read(request.into_inner())?;
        status::write_answer(self.0.locate(request).await, limits::INDEX_ANSWER)
    }

    async fn verify(
        &self,
        _: Request<wire::VerifyRequest>,
    ) -> Result<Response<wire::VerifyAnswer>, Status> {
        let digests = self.0.digests().await.map(Digests);
        status::write_answer(digests, limits::INDEX_ANSWER)
    }

    async fn dump(
        &self,
        _: Request<wire::DumpRequest>,
    ) -> Result<Response<Self::DumpStream>, Status> {
        let items = self.0.dump().await;
        let items = items.map_err(|why| status::write_call_error(&why))?;
        let items = items.map(|item| {
            let item = item.map_err(|why| status::write_call_error(&why))?;
            let message = item.to_wire();
            status::check::<DumpItem>(&message, limits::INDEX_ANSWER)?;
            Ok(message)
        });
        Ok(Response::new(items.boxed()))
    }
}
