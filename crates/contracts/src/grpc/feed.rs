//! `feed.proto`.

use std::sync::Arc;

use async_trait::async_trait;
use domain::{EventSeq, Target};
use tonic::{Request, Response, Status};

use super::connection::Peer;
use super::{limits, status};
use crate::DecodeError;
use crate::convert::{Wire, required, wire, wire_empty};
use crate::rpc::{CallError, Feed};
use wire::feed_client::FeedClient;

const SERVICE: &str = "event-ingest";

/// An event ingest at an address.
#[derive(Clone, Debug)]
pub struct RemoteFeed(Peer);

impl RemoteFeed {
    /// The one at `peer`.
    pub fn new(peer: Peer) -> Self {
        Self(peer)
    }
}

struct Resync {
    target: Target,
    from: EventSeq,
}

wire_empty!(Queued, ResyncAnswer, "resync answer");

impl Wire for Resync {
    const WHAT: &'static str = "resync";
    type Message = wire::ResyncRequest;

    fn to_wire(&self) -> wire::ResyncRequest {
        wire::ResyncRequest {
            target: Some(self.target.to_wire()),
            from_seq: self.from.get(),
        }
    }

    fn from_wire(message: wire::ResyncRequest) -> Result<Self, DecodeError> {
        Ok(Self {
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            from: EventSeq::new(message.from_seq),
        })
    }
}

#[async_trait]
impl Feed for RemoteFeed {
    async fn resync(&self, target: &Target, from: EventSeq) -> Result<(), CallError> {
        let request = Resync {
            target: target.clone(),
            from,
        };
        let limits = (limits::REPORT, limits::FEED_REQUEST);
        let answered = self
            .0
            .call(SERVICE, limits, &request, |channel, request| async move {
                FeedClient::new(channel).resync(request).await
            });
        answered.await.map(|Queued| ())
    }
}

pub(super) struct FeedServer(pub(super) Arc<dyn Feed>);

#[async_trait]
impl wire::feed_server::Feed for FeedServer {
    async fn resync(
        &self,
        request: Request<wire::ResyncRequest>,
    ) -> Result<Response<wire::ResyncAnswer>, Status> {
        let Resync { target, from } = status::read(request.into_inner())?;
        let queued = self.0.resync(&target, from).await.map(|()| Queued);
        status::write_answer(queued, limits::FEED_REQUEST)
    }
}
