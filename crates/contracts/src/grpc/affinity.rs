//! `affinity.proto`.

use affinity::{Binding, ConversationKey};
use async_trait::async_trait;
use tokio::time::timeout;

use super::checked::Checked;
use super::connection::Peer;
use super::{limits, status};
use crate::DecodeError;
use crate::convert::{Wire, required, wire, wire_empty};
use crate::rpc::{
    Acquire, Affinity, Bound, CallError, Confirm, Move, Page, Reassign, Release, Renew, Search,
    Unbind,
};
use wire::affinity_client::AffinityClient;

mod server;

pub(super) use server::AffinityServer;

const SERVICE: &str = "affinity-store";

/// An affinity store at an address.
#[derive(Clone, Debug)]
pub struct RemoteAffinity(Peer);

impl RemoteAffinity {
    /// The one at `peer`.
    pub fn new(peer: Peer) -> Self {
        Self(peer)
    }
}

/// The conversation whose binding is asked for.
struct Get(ConversationKey);

impl Wire for Get {
    const WHAT: &'static str = "get";
    type Message = wire::GetRequest;

    fn to_wire(&self) -> wire::GetRequest {
        wire::GetRequest {
            key: Some(self.0.to_wire()),
        }
    }

    fn from_wire(message: wire::GetRequest) -> Result<Self, DecodeError> {
        let key = required::<Self, _>("key", message.key)?;
        ConversationKey::from_wire(key).map(Self)
    }
}

/// A binding as it was exported.
struct Import(Binding);

impl Wire for Import {
    const WHAT: &'static str = "import";
    type Message = wire::ImportRequest;

    fn to_wire(&self) -> wire::ImportRequest {
        wire::ImportRequest {
            binding: Some(self.0.to_wire()),
        }
    }

    fn from_wire(message: wire::ImportRequest) -> Result<Self, DecodeError> {
        let binding = required::<Self, _>("binding", message.binding)?;
        Binding::from_wire(binding).map(Self)
    }
}

wire_empty!(Released, ReleaseAnswer, "release answer");
wire_empty!(Renewed, RenewAnswer, "renew answer");
wire_empty!(Unbound, UnbindAnswer, "unbind answer");

fn client(channel: Checked) -> AffinityClient<Checked> {
    AffinityClient::new(channel)
        .max_encoding_message_size(limits::AFFINITY_REQUEST)
        .max_decoding_message_size(limits::AFFINITY_ANSWER)
}

/// Calls that a request waits for.
const TURN: (std::time::Duration, usize) = (limits::LOOKUP, limits::AFFINITY_REQUEST);
/// The others.
const REPORT: (std::time::Duration, usize) = (limits::REPORT, limits::AFFINITY_REQUEST);

/// Calls `$method` of the store.
macro_rules! call {
    ($self:ident, $limits:expr, $request:expr, $method:ident) => {
        $self
            .0
            .call(SERVICE, $limits, $request, |channel, request| async move {
                client(channel).$method(request).await
            })
            .await
    };
}

#[async_trait]
impl Affinity for RemoteAffinity {
    async fn get(&self, key: &ConversationKey) -> Result<Option<Bound>, CallError> {
        call!(self, TURN, &Get(key.clone()), get)
    }

    async fn acquire(&self, request: Acquire) -> Result<Bound, CallError> {
        call!(self, TURN, &request, acquire)
    }

    async fn confirm(&self, request: Confirm) -> Result<Bound, CallError> {
        call!(self, REPORT, &request, confirm)
    }

    async fn rebind(&self, request: Move) -> Result<Bound, CallError> {
        call!(self, TURN, &request, r#move)
    }

    async fn release(&self, request: Release) -> Result<(), CallError> {
        call!(self, REPORT, &request, release).map(|Released| ())
    }

    async fn renew(&self, request: Renew) -> Result<(), CallError> {
        call!(self, REPORT, &request, renew).map(|Renewed| ())
    }

    async fn list(&self, limit: usize) -> Result<Vec<Bound>, CallError> {
        let late = || CallError::DeadlineExceeded { service: SERVICE };
        let address = self.0.address();
        let line = timeout(limits::CONNECT, self.0.line()).await;
        let line = line.map_err(|_| late())?;
        let line = line.map_err(|why| status::unreached(SERVICE, address, &*why))?;
        let failed = |failed| {
            self.0.notice(&line, &failed);
            status::read_call_error(SERVICE, address, &failed)
        };
        let request = wire::ListRequest {
            limit: limit as u64,
        };
        let mut client = client(line.channel.clone());
        let asked = timeout(limits::REPORT, client.list(request)).await;
        let mut parts = asked.map_err(|_| late())?.map_err(failed)?.into_inner();
        let mut all: Vec<Bound> = Vec::new();
        loop {
            let part = timeout(limits::STALL, parts.message()).await;
            let Some(part) = part.map_err(|_| late())?.map_err(failed)? else {
                return Ok(all);
            };
            let part = Vec::<Bound>::from_wire(part);
            let part = part.map_err(|why| CallError::Unavailable {
                service: SERVICE,
                why: status::chain(&why),
            })?;
            if limit - all.len() < part.len() {
                return Err(CallError::Unavailable {
                    service: SERVICE,
                    why: format!("{address} answers more bindings than the {limit} asked for"),
                });
            }
            all.extend(part);
        }
    }

    async fn search(&self, search: Search) -> Result<Page, CallError> {
        let search = Search {
            limit: search.limit.min(limits::PAGE),
            ..search
        };
        call!(self, REPORT, &search, search)
    }

    async fn reassign(&self, request: Reassign) -> Result<Bound, CallError> {
        call!(self, REPORT, &request, reassign)
    }

    async fn unbind(&self, request: Unbind) -> Result<(), CallError> {
        call!(self, REPORT, &request, unbind).map(|Unbound| ())
    }

    async fn import(&self, binding: Binding) -> Result<Option<Bound>, CallError> {
        call!(self, REPORT, &Import(binding), import)
    }
}
