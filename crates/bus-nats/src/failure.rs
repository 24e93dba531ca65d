//! Why something did not happen: to whoever connects a [`ConnectError`], to everybody else what stands in a
//! [`BusError::Unavailable`].

use async_nats::jetstream;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    PublishError, PublishErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::stream::{
    ConsumerError, ConsumerErrorKind, LastRawMessageError, LastRawMessageErrorKind,
};
use bus::{BusError, MAX_RECORD_BYTES};

use crate::TRIED;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no bus.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A setting is wrong.
    #[error("setting {setting} of NATS: {problem}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// No server could be reached, or none proved who it is.
    #[error("connect to NATS at {servers}")]
    Unreachable {
        /// Which were tried.
        servers: String,
        /// What happened at the last one.
        #[source]
        source: async_nats::ConnectError,
    },
    /// A server refuses the login.
    #[error("NATS at {servers} refuses the login")]
    Refused {
        /// Which were tried.
        servers: String,
        /// What it says.
        #[source]
        source: async_nats::ConnectError,
    },
    /// The server is too old.
    #[error("NATS server {server} has version {found}, and Rankway needs 2.9 or newer")]
    Version {
        /// Its name.
        server: String,
        /// Its version.
        found: String,
    },
    /// The server takes only smaller messages.
    #[error(
        "NATS server {server} takes messages of at most {found} bytes, and Rankway needs {needed}: set its \
         max_payload to 1MB"
    )]
    Payload {
        /// Its name.
        server: String,
        /// Its limit in bytes.
        found: usize,
        /// What is needed in bytes.
        needed: usize,
    },
    /// The server has no JetStream, or the account may not use it.
    #[error(
        "NATS server {server} offers no JetStream: start it with -js, and allow it to the account"
    )]
    NoJetStream {
        /// Its name.
        server: String,
    },
    /// The user may not do what preparing a log or table takes, or not hear the answer.
    #[error(
        "NATS server {server} forbids its user what it takes to prepare stream {name} ({said}): {}",
        remedy(said)
    )]
    Forbidden {
        /// The server's name.
        server: String,
        /// The name of the stream.
        name: String,
        /// What the server said.
        said: String,
    },
    /// JetStream does not answer in time, as in a cluster that has no leader yet.
    #[error("NATS server {server} is not ready to prepare stream {name}")]
    NotReady {
        /// Its name.
        server: String,
        /// The name of the stream.
        name: String,
        /// What happened.
        #[source]
        source: Source,
    },
    /// A log or table could not be prepared.
    #[error("prepare stream {name} on NATS")]
    Stream {
        /// The name of its stream.
        name: String,
        /// What happened.
        #[source]
        source: Source,
    },
}

impl ConnectError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            // Somebody who may make the streams may be about to.
            Self::Unreachable { .. } | Self::NotReady { .. } | Self::Forbidden { .. } => true,
            Self::Setting { .. }
            | Self::Refused { .. }
            | Self::Version { .. }
            | Self::Payload { .. }
            | Self::NoJetStream { .. }
            | Self::Stream { .. } => false,
        }
    }
}

/// What to do about something that the server does not allow.
fn remedy(said: &str) -> &'static str {
    match said.to_lowercase().contains("subscription") {
        true => "set bus.inbox to where this user may hear answers",
        false => {
            "the stream is missing or made with other settings, so run `rankway setup` as a user who may make streams, \
             with this bus.prefix, bus.replicas and bus.topic_bytes"
        }
    }
}

/// Why an operation did not happen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no NATS server is connected")]
    Away,
    #[error("NATS gave no answer")]
    Silent,
    #[error("nothing at NATS answers for JetStream")]
    NobodyThere,
    #[error("more appends wait than fit the queue, for longer than {TRIED:?}")]
    QueueFull,
    #[error("other writers were always faster")]
    Outrun,
    #[error("the log or table began anew")]
    Anew,
    #[error("the watcher has been behind for too long to know what was deleted")]
    Behind,
    #[error("the bus is closed")]
    Closed,
    #[error("JetStream refuses")]
    Refused(#[source] jetstream::Error),
    #[error("JetStream was not understood")]
    Other(#[source] Source),
}

impl Failure {
    /// Whether to try again before the deadline.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Away | Self::Silent | Self::NobodyThere => true,
            // Such as a cluster that elects a leader, or whose servers have not all met.
            Self::Refused(error) => {
                error.code() == 503 || error.error_code() == ErrorCode::CLUSTER_NO_PEERS
            }
            Self::QueueFull
            | Self::Outrun
            | Self::Anew
            | Self::Behind
            | Self::Closed
            | Self::Other(_) => false,
        }
    }

    /// Whether there is no such stream.
    pub(crate) fn is_no_stream(&self) -> bool {
        matches!(self, Self::Refused(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
    }
}

impl From<Failure> for BusError {
    fn from(failure: Failure) -> Self {
        Self::Unavailable(Box::new(failure))
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        match error.kind() {
            RequestErrorKind::NoResponders => Self::NobodyThere,
            RequestErrorKind::TimedOut => Self::Silent,
            RequestErrorKind::InvalidSubject | RequestErrorKind::Other => {
                Self::Other(Box::new(error))
            }
        }
    }
}

impl From<ConsumerError> for Failure {
    fn from(error: ConsumerError) -> Self {
        match error.kind() {
            ConsumerErrorKind::JetStream(error) => Self::Refused(error),
            ConsumerErrorKind::TimedOut => Self::Silent,
            ConsumerErrorKind::Request => Self::NobodyThere,
            _ => Self::Other(Box::new(error)),
        }
    }
}

impl From<LastRawMessageError> for Failure {
    fn from(error: LastRawMessageError) -> Self {
        match error.kind() {
            LastRawMessageErrorKind::JetStream(error) => Self::Refused(error),
            // It does not say what went wrong; most often nothing has answered.
            _ => Self::Silent,
        }
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error.kind() {
            PublishErrorKind::StreamNotFound => Self::NobodyThere,
            PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => Self::Silent,
            _ => match refusal(&error) {
                Some(refusal) => Self::Refused(refusal),
                None => Self::Other(Box::new(error)),
            },
        }
    }
}

/// What JetStream says to a message that it does not take.
fn refusal(error: &PublishError) -> Option<jetstream::Error> {
    let source = std::error::Error::source(error)?;
    source.downcast_ref::<jetstream::Error>().cloned()
}

/// What a server must take: the largest record with the headers around it.
pub(crate) const PAYLOAD: usize = MAX_RECORD_BYTES + 4096;
