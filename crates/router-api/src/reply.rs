//! An engine's answer on its way to the client.

use std::io;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use contracts::rpc::{CallEnd, CallStream, DispatchError, Down, HttpHead};
use futures::{Stream, StreamExt, stream};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use routing::Status;
use service_kit::error_chain;

use crate::chain::Chain;
use crate::error::ApiError;
use crate::turn::Turn;

/// What became of a request at its engine, before the client has seen anything of it.
pub(crate) enum Answer {
    /// There is something to pass on.
    Passing(Reply),
    /// Another target may do better.
    Failed { status: Status, why: String },
}

/// An answer whose first byte is there.
pub(crate) struct Reply {
    head: HttpHead,
    first: Down,
    rest: CallStream,
}

impl Answer {
    /// Waits for the first byte: until then another target can still be tried.
    pub(crate) async fn of(call: Result<(HttpHead, CallStream), DispatchError>) -> Self {
        let (head, mut rest) = match call {
            Ok(answer) => answer,
            Err(error) => return Self::failed(&error),
        };
        let failed = |status| Self::Failed {
            status,
            why: format!("the engine answers {}", head.status),
        };
        match head.status {
            502 => return failed(Status::Failed),
            503 => return failed(Status::Refused),
            _ => {}
        }
        match rest.next().await {
            Some(Ok(first)) => Self::Passing(Reply { head, first, rest }),
            Some(Err(error)) => Self::failed(&error),
            // A stream ends with its end or an error.
            None => Self::Failed {
                status: Status::Failed,
                why: "the answer had no end".to_owned(),
            },
        }
    }

    fn failed(error: &DispatchError) -> Self {
        let why = error_chain(error);
        let status = match error {
            DispatchError::Connect { .. } | DispatchError::UnknownWorker { .. } => {
                Status::Unreachable
            }
            DispatchError::Adapter { .. } => Status::NoAdapter,
            // Other numbers may be ranks here, or this one elsewhere.
            DispatchError::Rank { .. } => Status::RankRefused,
            DispatchError::Broken { .. } => Status::Failed,
        };
        Self::Failed { status, why }
    }
}

impl Reply {
    /// The response to the client. It drives the turn: to its end, or to its cancellation when dropped.
    pub(crate) fn into_response(
        self,
        turn: Turn,
        chain: Option<Chain>,
        expose_decision: bool,
    ) -> Response {
        let Self { head, first, rest } = self;
        let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let mut headers = HeaderMap::with_capacity(head.headers.len() + 4);
        for (name, value) in &head.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            // What an engine sends as a header, a client can be sent.
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
                headers.append(name, value);
            }
        }
        if expose_decision {
            expose(&turn, &mut headers);
        }
        let media = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let passage = Passage {
            turn,
            chain: chain.filter(|_| status.is_success()),
            rest: stream::iter([Ok(first)]).chain(rest).boxed(),
            status,
            events: media.is_some_and(|it| it.starts_with("text/event-stream")),
            over: false,
        };
        let mut response = Response::new(Body::from_stream(passage.into_stream()));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

/// An answer passing through.
struct Passage {
    turn: Turn,
    /// What is to be done for the turn that goes on with this answer.
    chain: Option<Chain>,
    rest: CallStream,
    status: StatusCode,
    /// Whether it is a stream of events, in which an error can be told.
    events: bool,
    over: bool,
}

impl Passage {
    fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        stream::unfold(self, |mut passage| async move {
            let item = passage.next().await?;
            Some((item, passage))
        })
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.over {
            return None;
        }
        match self.rest.next().await {
            Some(Ok(Down::Chunk(chunk))) => {
                if self.status.is_success() {
                    self.turn.first_chunk();
                }
                if let Some(chain) = &mut self.chain {
                    chain.see(&chunk, &self.turn.decision).await;
                }
                Some(Ok(chunk))
            }
            Some(Ok(Down::End(end))) => {
                self.over = true;
                self.turn.end(outcome_of(self.status), &end);
                None
            }
            Some(Err(error)) => Some(self.broke(error_chain(&error))),
            None => Some(self.broke("the answer had no end".to_owned())),
        }
    }

    /// An event stream ends with an event that says so; of anything else the connection breaks, so that the
    /// client does not take it for whole.
    fn broke(&mut self, why: String) -> io::Result<Bytes> {
        self.over = true;
        self.turn.end(Status::Failed, &CallEnd::default());
        let error = ApiError::Upstream { attempts: 1, why };
        match self.events {
            true => Ok(Bytes::from(error.to_event())),
            false => Err(io::Error::other(error)),
        }
    }
}

fn outcome_of(status: StatusCode) -> Status {
    match status.as_u16() {
        200..=399 => Status::Served,
        429 | 503 => Status::Refused,
        400..=499 => Status::Invalid,
        _ => Status::Failed,
    }
}

/// Tells the client where it went.
fn expose(turn: &Turn, headers: &mut HeaderMap) {
    let decision = &turn.decision;
    let mut set = |name: &'static str, value: String| {
        // Ids have no control characters, but may have others that no header can carry.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    };
    set("x-rankway-decision", decision.id.to_string());
    set("x-rankway-worker", decision.place.worker().to_string());
    if let Some(target) = decision.target() {
        set("x-rankway-dp-rank", target.dp_rank.to_string());
        let held = decision.held_at(target).unwrap_or_default();
        set("x-rankway-overlap-tokens", held.to_string());
    }
    set("x-rankway-queue-ms", turn.queued.as_millis().to_string());
    let degraded = turn.degraded();
    if !degraded.is_empty() {
        set("x-rankway-degraded", degraded.join(", "));
    }
}
