//! Errors as OpenAI's clients understand them.

use std::borrow::Cow;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, StatusCode};
use routing::admission::{Bounds, Cause, Refusal};
use serde::Serialize;

/// Seconds after which a client may try again: a worker's registration is renewed every five.
const RETRY_AFTER_SECONDS: u16 = 5;

/// Why a request has no answer of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ApiError {
    /// The client's fault.
    #[error("{message}")]
    Invalid {
        /// What is wrong.
        message: String,
        /// The field or header that is.
        param: Option<&'static str>,
    },
    /// Keys are set, and the client shows none of them.
    #[error("give a valid API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    InvalidKey,
    /// The body is longer than allowed.
    #[error("the request body of {size} is longer than the limit of {limit} bytes (`max_body`)")]
    TooLarge {
        /// Its length, as far as it is known.
        size: String,
        /// The longest allowed.
        limit: usize,
    },
    /// Nobody serves the model.
    #[error("the model {model:?} does not exist; there is {known}")]
    UnknownModel {
        /// What was asked for.
        model: String,
        /// What there is.
        known: String,
    },
    /// The tenant has had no answer of this id, or not of late.
    #[error("Previous response with id '{id}' not found.")]
    UnknownResponse {
        /// The id.
        id: String,
    },
    /// No such decision waits for its outcome.
    #[error("{why}")]
    UnknownDecision {
        /// Why not.
        why: String,
    },
    /// Somebody else is doing the same.
    #[error("{why}")]
    Conflict {
        /// What.
        why: String,
    },
    /// There is no such path.
    #[error("there is no {path}")]
    UnknownPath {
        /// What was asked for.
        path: String,
    },
    /// The path takes another method.
    #[error("{path} does not take {method}")]
    Method {
        /// The path.
        path: String,
        /// The method used.
        method: String,
    },
    /// The model is known, but no target can take the request.
    #[error("{why}")]
    NoTarget {
        /// Why not.
        why: String,
    },
    /// Every target is past its limit, and the request does not wait, or no longer.
    #[error("{}", queue_error(refusal, bounds))]
    Queue {
        /// Why not, and when it may come again.
        refusal: Refusal,
        /// How many may wait, and for how long.
        bounds: Bounds,
    },
    /// A service behind the router did not do what was asked of it.
    #[error("{why}")]
    Unavailable {
        /// Which, and why not.
        why: String,
    },
    /// Engines were asked and none answered.
    #[error("no engine answered after {attempts} attempts: {why}")]
    Upstream {
        /// How many targets were tried.
        attempts: u32,
        /// The last failure.
        why: String,
    },
    /// The client has stopped sending.
    #[error("nothing came of the request body for {patience:?}")]
    Stalled {
        /// How long was waited.
        patience: Duration,
    },
    /// More requests are in memory than the process may hold.
    #[error("request bodies of {limit} bytes are in flight already")]
    Overloaded {
        /// The most that may be.
        limit: usize,
    },
}

/// What is quoted of a text that somebody else wrote, at most 256 bytes: its begin, and its end, where a parser's
/// error says what it expected and where.
pub(crate) fn excerpt(text: &str) -> Cow<'_, str> {
    const BEGIN: usize = 160;
    const END: usize = 91;
    const BETWEEN: &str = " ... ";
    if text.len() <= BEGIN + BETWEEN.len() + END {
        return Cow::Borrowed(text);
    }
    let begin = &text[..text.floor_char_boundary(BEGIN)];
    let end = &text[text.ceil_char_boundary(text.len() - END)..];
    Cow::Owned([begin, BETWEEN, end].concat())
}

fn queue_error(refusal: &Refusal, bounds: &Bounds) -> String {
    let why = match refusal.cause {
        Cause::Full => {
            let waiting = bounds.max_waiting;
            format!("every target is past its limit, and {waiting} requests wait already")
        }
        Cause::Displaced => "every target is past its limit, and of all that wait this request gave way to one of a \
            higher priority, or of a tenant that has fewer waiting"
            .to_owned(),
        Cause::Late => {
            let longest = bounds.max_wait.as_secs_f64();
            format!("every target is past its limit, and the request would wait longer than {longest} s")
        }
        Cause::Timeout => {
            let longest = bounds.max_wait.as_secs_f64();
            format!("every target has been past its limit for {longest} s, the longest that a request waits")
        }
    };
    format!("{why}: try again in {} s", retry_seconds(refusal))
}

/// Rounded up: an early client would find the same.
fn retry_seconds(refusal: &Refusal) -> u64 {
    refusal.retry_after.as_secs_f64().ceil() as u64
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Shape<'a>,
}

#[derive(Serialize)]
struct Shape<'a> {
    message: String,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl ApiError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
            param: None,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            // An unknown response is answered as by OpenAI's API, not as what is not found elsewhere.
            Self::Invalid { .. } | Self::UnknownResponse { .. } => StatusCode::BAD_REQUEST,
            Self::InvalidKey => StatusCode::UNAUTHORIZED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Stalled { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::UnknownModel { .. } | Self::UnknownPath { .. } | Self::UnknownDecision { .. } => {
                StatusCode::NOT_FOUND
            }
            Self::Conflict { .. } => StatusCode::CONFLICT,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Queue { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::NoTarget { .. } | Self::Unavailable { .. } | Self::Overloaded { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Upstream { .. } => StatusCode::BAD_GATEWAY,
        }
    }

    /// The JSON of it.
    pub(crate) fn to_json(&self) -> String {
        let (kind, param, code) = match self {
            Self::Invalid { param, .. } => ("invalid_request_error", *param, None),
            Self::InvalidKey => ("invalid_request_error", None, Some("invalid_api_key")),
            Self::TooLarge { .. } => ("invalid_request_error", None, Some("body_too_large")),
            Self::Stalled { .. } => ("invalid_request_error", None, Some("body_stalled")),
            Self::UnknownModel { .. } => (
                "invalid_request_error",
                Some("model"),
                Some("model_not_found"),
            ),
            Self::UnknownResponse { .. } => (
                "invalid_request_error",
                Some("previous_response_id"),
                Some("previous_response_not_found"),
            ),
            Self::UnknownPath { .. } => ("invalid_request_error", None, Some("not_found")),
            Self::UnknownDecision { .. } => (
                "invalid_request_error",
                Some("decision"),
                Some("decision_not_found"),
            ),
            Self::Conflict { .. } => ("invalid_request_error", None, Some("conflict")),
            Self::Method { .. } => ("invalid_request_error", None, Some("method_not_allowed")),
            Self::Queue { refusal, .. } => {
                let code = match refusal.cause {
                    Cause::Full | Cause::Displaced => "queue_full",
                    Cause::Late | Cause::Timeout => "queue_timeout",
                };
                ("rate_limit_error", None, Some(code))
            }
            Self::NoTarget { .. } => ("server_error", None, Some("no_target")),
            Self::Unavailable { .. } => ("server_error", None, Some("unavailable")),
            Self::Upstream { .. } => ("server_error", None, Some("upstream_failed")),
            Self::Overloaded { .. } => ("server_error", None, Some("overloaded")),
        };
        let error = Shape {
            message: self.to_string(),
            kind,
            param,
            code,
        };
        serde_json::to_string(&Envelope { error }).expect("four texts are JSON")
    }

    /// It as a server-sent event, for an answer whose head is gone.
    pub(crate) fn to_event(&self) -> String {
        format!("data: {}\n\n", self.to_json())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(self.to_json().into());
        *response.status_mut() = self.status();
        let mut set = |name: HeaderName, value: HeaderValue| {
            response.headers_mut().insert(name, value);
        };
        set(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self {
            Self::NoTarget { .. }
            | Self::Unavailable { .. }
            | Self::Upstream { .. }
            | Self::Overloaded { .. } => {
                set(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
            }
            Self::Queue { refusal, .. } => {
                set(RETRY_AFTER, HeaderValue::from(retry_seconds(&refusal)));
            }
            Self::InvalidKey => set(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            Self::Invalid { .. }
            | Self::TooLarge { .. }
            | Self::Stalled { .. }
            | Self::UnknownModel { .. }
            | Self::UnknownResponse { .. }
            | Self::UnknownPath { .. }
            | Self::UnknownDecision { .. }
            | Self::Conflict { .. }
            | Self::Method { .. } => {}
        }
        response
    }
}
