//! Errors as gRPC carries them, and back: the standard codes, with what they do not say in the details.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use domain::{DpRank, WorkerId};
use prost::Message as _;
use tonic::{Code, ConnectError, Response, Status, TimeoutExpired};

use super::limits;
use crate::DecodeError;
use crate::convert::{Wire, wire};
use crate::rpc::{CallError, DispatchError};

/// Under which clients of other languages find the details.
const FAILURE_TYPE: &str = "type.googleapis.com/rankway.v1.DispatchFailure";

/// An answer to be sent, at most `limit` bytes long.
pub(super) fn write_answer<T: Wire>(
    answer: Result<T, CallError>,
    limit: usize,
) -> Result<Response<T::Message>, Status> {
    let message = answer.map_err(|error| write_call_error(&error))?.to_wire();
    check::<T>(&message, limit)?;
    Ok(Response::new(message))
}

/// Refuses a message of more than `limit` bytes.
pub(super) fn check<T: Wire>(message: &T::Message, limit: usize) -> Result<(), Status> {
    let bytes = message.encoded_len();
    if limit < bytes {
        return Err(Status::out_of_range(over_limit(T::WHAT, bytes, limit)));
    }
    Ok(())
}

/// What is said of a message that is too long.
pub(super) fn over_limit(what: &str, bytes: usize, limit: usize) -> String {
    format!("{what} of {bytes} bytes is over the limit of {limit}")
}

/// A message that came, as what it means.
pub(super) fn read<T: Wire>(message: T::Message) -> Result<T, Status> {
    T::from_wire(message).map_err(|why| refuse(&why))
}

/// A message that makes no sense.
pub(super) fn refuse(why: &DecodeError) -> Status {
    Status::invalid_argument(cut(&chain(why)))
}

pub(super) fn write_call_error(error: &CallError) -> Status {
    match error {
        CallError::Unavailable { why, .. } | CallError::Unreached { why, .. } => {
            Status::unavailable(cut(why))
        }
        CallError::DeadlineExceeded { .. } => Status::deadline_exceeded(error.to_string()),
        CallError::FailedPrecondition { why } => Status::failed_precondition(cut(why)),
        CallError::InvalidArgument { why } => Status::invalid_argument(cut(why)),
    }
}

/// What a failed call to `service` at `address` means.
pub(super) fn read_call_error(service: &'static str, address: &str, status: &Status) -> CallError {
    let why = status.message().to_owned();
    match cause(status) {
        Failed::Answered => match status.code() {
            Code::FailedPrecondition => CallError::FailedPrecondition { why },
            Code::InvalidArgument | Code::OutOfRange => CallError::InvalidArgument { why },
            Code::Unavailable => CallError::Unavailable { service, why },
            // A server gives up what it was told to give up, and says that it is cancelled.
            Code::DeadlineExceeded | Code::Cancelled => CallError::DeadlineExceeded { service },
            code => CallError::Unavailable {
                service,
                why: format!("{address}: {why} ({code:?})"),
            },
        },
        Failed::TooLate => CallError::DeadlineExceeded { service },
        Failed::Unsent(cause) => unreached(service, address, cause),
        Failed::Lost(cause) => CallError::Unavailable {
            service,
            why: format!("{address}: {}", chain(cause)),
        },
    }
}

/// Whether a call failed for want of its connection.
pub(super) fn is_of_the_connection(status: &Status) -> bool {
    match cause(status) {
        Failed::Answered | Failed::TooLate => false,
        Failed::Unsent(_) | Failed::Lost(_) => true,
    }
}

/// What a call failed of.
enum Failed<'a> {
    /// The other side says so.
    Answered,
    /// Its deadline, at this side.
    TooLate,
    /// It did not get out.
    Unsent(&'a (dyn Error + 'static)),
    /// The connection ended before the answer was there.
    Lost(&'a (dyn Error + 'static)),
}

fn cause(status: &Status) -> Failed<'_> {
    let Some(cause) = status.source() else {
        return Failed::Answered;
    };
    if whole(cause).any(|it| it.is::<TimeoutExpired>()) {
        Failed::TooLate
    } else if whole(cause).any(|it| it.is::<ConnectError>()) {
        Failed::Unsent(cause)
    } else {
        Failed::Lost(cause)
    }
}

/// Nothing was sent to `address`.
pub(super) fn unreached(
    service: &'static str,
    address: &str,
    why: &(dyn Error + 'static),
) -> CallError {
    CallError::Unreached {
        service,
        why: format!("{address}: {}", chain(why)),
    }
}

pub(super) fn write_dispatch_error(error: &DispatchError) -> Status {
    use wire::dispatch_failure::{BrokenOff, Failure, RefusedRank, Unconnected, UnknownWorker};
    let (code, worker, failure) = match error {
        DispatchError::UnknownWorker { worker } => {
            let failure = Failure::UnknownWorker(UnknownWorker {});
            (Code::NotFound, worker, failure)
        }
        DispatchError::Rank {
            worker,
            dp_rank,
            why,
        } => {
            let failure = Failure::Rank(RefusedRank {
                dp_rank: dp_rank.get(),
                why: cut(why),
            });
            (Code::FailedPrecondition, worker, failure)
        }
        // Without details it says the same of whoever answers so.
        DispatchError::Adapter { .. } => return Status::unavailable(cut(&chain(error))),
        DispatchError::Connect {
            worker,
            url,
            source,
        } => {
            let failure = Failure::Connect(Unconnected {
                url: cut(url),
                causes: causes(&**source),
            });
            (Code::Unavailable, worker, failure)
        }
        DispatchError::Broken { worker, source } => {
            let causes = causes(&**source);
            (Code::Aborted, worker, Failure::Broken(BrokenOff { causes }))
        }
    };
    let failure = wire::DispatchFailure {
        worker: worker.to_string(),
        failure: Some(failure),
    };
    let message = cut(&chain(error));
    let details = wire::ErrorDetails {
        code: code.into(),
        message: message.clone(),
        details: vec![prost_types::Any {
            type_url: FAILURE_TYPE.to_owned(),
            value: failure.encode_to_vec(),
        }],
    };
    Status::with_details(code, message, Bytes::from(details.encode_to_vec()))
}

/// What a failed call to an adapter means; none where only the adapter, and nothing of an engine, is the matter.
pub(super) fn read_dispatch_error(status: &Status) -> Option<DispatchError> {
    use wire::dispatch_failure::Failure;
    let details = wire::ErrorDetails::decode(status.details()).ok()?;
    let mut failures = details.details.iter();
    let failure = failures.find(|it| it.type_url == FAILURE_TYPE)?;
    let failure = wire::DispatchFailure::decode(failure.value.as_slice()).ok()?;
    let worker = WorkerId::new(&failure.worker).ok()?;
    Some(match failure.failure? {
        Failure::UnknownWorker(_) => DispatchError::UnknownWorker { worker },
        Failure::Rank(it) => DispatchError::Rank {
            worker,
            dp_rank: DpRank::new(it.dp_rank),
            why: it.why,
        },
        Failure::Connect(it) => DispatchError::Connect {
            worker,
            url: it.url,
            source: Cause::read(it.causes).into(),
        },
        Failure::Broken(it) => DispatchError::Broken {
            worker,
            source: Cause::read(it.causes).into(),
        },
    })
}

/// What an error of another process said, with what caused it.
#[derive(Debug)]
pub(super) struct Cause {
    text: String,
    source: Option<Box<Cause>>,
}

impl Cause {
    /// Texts, outermost first.
    fn read(texts: Vec<String>) -> Self {
        let causes = texts.into_iter().rev();
        let all = causes.fold(None, |source, text| {
            Some(Self {
                text,
                source: source.map(Box::new),
            })
        });
        all.unwrap_or_else(|| Self::of("no cause is named"))
    }

    pub(super) fn of(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            source: None,
        }
    }

    /// Of a call that failed without a word of an engine.
    pub(super) fn of_status(status: &Status) -> Self {
        let message = status.message();
        match status.source() {
            Some(cause) => Self::of(format!("{message}: {}", chain(cause))),
            None => Self::of(format!("{message} ({:?})", status.code())),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.source.as_deref();
        source.map(|it| it as &(dyn Error + 'static))
    }
}

/// An error and its causes, outermost first, as far as they are sent.
fn causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let sent = whole(error).take(limits::ERROR_CAUSES);
    sent.map(|it| cut(&it.to_string())).collect()
}

/// An error and its causes on one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = whole(error).map(ToString::to_string).collect();
    texts.join(": ")
}

fn whole<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&it| it.source())
}

/// As much of a text as is sent of it.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(limits::ERROR_TEXT);
    text[..end].to_owned()
}
