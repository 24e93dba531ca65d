//! A process at an address: connected when first called, and again after it was lost.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use prost::Message as _;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use super::checked::Checked;
use super::credentials::Credentials;
use super::limits;
use super::status;
use crate::convert::Wire;
use crate::rpc::CallError;

/// A process at an address. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Peer {
    address: Arc<str>,
    endpoint: Endpoint,
    /// Guards nothing but the attempt; each critical section is one look or replacement.
    attempt: Arc<Mutex<Attempt>>,
}

/// The last attempt to connect. All who call while it is under way wait for the same.
#[derive(Default)]
struct Attempt {
    number: u64,
    channel: Option<Shared<BoxFuture<'static, Connected>>>,
}

type Connected = Result<Checked, Arc<tonic::transport::Error>>;

/// An address or credentials that nothing can be called with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("call {address:?}: {why}")]
pub struct InvalidPeer {
    address: String,
    why: String,
}

/// A connection, and which one it is.
pub(super) struct Line {
    pub(super) channel: Checked,
    number: u64,
}

impl Peer {
    /// The process at `address`, a `host:port`. Nothing is connected before the first call.
    pub fn at(address: &str, credentials: Option<&Credentials>) -> Result<Self, InvalidPeer> {
        let refuse = |why: String| InvalidPeer {
            address: address.to_owned(),
            why,
        };
        let invalid = |why: tonic::transport::Error| refuse(status::chain(&why));
        let port = address
            .rsplit_once(':')
            .map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(_))) {
            return Err(refuse("write host:port".to_owned()));
        }
        let scheme = if credentials.is_some() {
            "https"
        } else {
            "http"
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(invalid)?;
        let endpoint = endpoint
            .connect_timeout(limits::CONNECT)
            .tcp_nodelay(true)
            .initial_stream_window_size(limits::STREAM_WINDOW)
            .initial_connection_window_size(limits::CONNECTION_WINDOW)
            .http2_max_header_list_size(limits::HEADERS)
            .http2_keep_alive_interval(limits::PING_EVERY)
            .keep_alive_timeout(limits::PING_WITHIN)
            .keep_alive_while_idle(true);
        let endpoint = match credentials {
            Some(it) => endpoint.tls_config(it.client()).map_err(invalid)?,
            None => endpoint,
        };
        Ok(Self {
            address: Arc::from(address),
            endpoint,
            attempt: Arc::default(),
        })
    }

    /// Its `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The connection. An error means that nothing was sent.
    pub(super) async fn line(&self) -> Result<Line, Arc<tonic::transport::Error>> {
        let (number, connecting) = {
            let mut attempt = self.lock();
            let endpoint = &self.endpoint;
            let channel = attempt.channel.get_or_insert_with(|| connect(endpoint));
            let connecting = channel.clone();
            (attempt.number, connecting)
        };
        match connecting.await {
            Ok(channel) => Ok(Line { channel, number }),
            Err(error) => {
                self.lose(number);
                Err(error)
            }
        }
    }

    /// Whether a call failed for want of its connection: then the next call makes another.
    pub(super) fn notice(&self, line: &Line, status: &Status) {
        if status::is_of_the_connection(status) {
            self.lose(line.number);
        }
    }

    fn lose(&self, number: u64) {
        let mut attempt = self.lock();
        if attempt.number == number {
            *attempt = Attempt {
                number: number.wrapping_add(1),
                channel: None,
            };
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Attempt> {
        // No holder can leave it half changed.
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request and its answer within `deadline`, which the other side is told of. A request of more than
    /// `limit` bytes is not sent.
    pub(super) async fn call<Q: Wire, A: Wire, F>(
        &self,
        service: &'static str,
        (deadline, limit): (Duration, usize),
        request: &Q,
        send: impl FnOnce(Checked, Request<Q::Message>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<Response<A::Message>, Status>>,
    {
        let message = request.to_wire();
        let bytes = message.encoded_len();
        if limit < bytes {
            let why = status::over_limit(Q::WHAT, bytes, limit);
            return Err(CallError::InvalidArgument { why });
        }
        let until = Instant::now() + deadline;
        let answer = timeout_at(until, async {
            let line = self.line().await;
            let line = line.map_err(|why| status::unreached(service, &self.address, &*why))?;
            let mut request = Request::new(message);
            request.set_timeout(until.saturating_duration_since(Instant::now()));
            let answer = send(line.channel.clone(), request).await;
            answer.map_err(|failed| {
                self.notice(&line, &failed);
                status::read_call_error(service, &self.address, &failed)
            })
        });
        let answer = answer.await;
        let answer = answer.unwrap_or(Err(CallError::DeadlineExceeded { service }))?;
        A::from_wire(answer.into_inner()).map_err(|why| CallError::Unavailable {
            service,
            why: status::chain(&why),
        })
    }
}

fn connect(endpoint: &Endpoint) -> Shared<BoxFuture<'static, Connected>> {
    let endpoint = endpoint.clone();
    let connecting = async move { endpoint.connect().await.map(Checked).map_err(Arc::new) };
    connecting.boxed().shared()
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.address)
    }
}
