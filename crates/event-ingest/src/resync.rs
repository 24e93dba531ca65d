//! The handle by which readers of the log ask for events again.

use async_trait::async_trait;
use contracts::rpc::{CallError, Feed};
use domain::{EventSeq, Target};
use tokio::sync::{mpsc, oneshot};

/// Requests waiting for the service: a reader asks for each rank at most once at a time.
const QUEUE: usize = 256;

/// One request and where to answer it.
#[derive(Debug)]
pub(crate) struct ResyncRequest {
    pub(crate) target: Target,
    pub(crate) from: EventSeq,
    pub(crate) answer: oneshot::Sender<Result<(), CallError>>,
}

/// What a caller holds.
#[derive(Clone, Debug)]
pub(crate) struct ResyncHandle(mpsc::Sender<ResyncRequest>);

pub(crate) fn channel() -> (ResyncHandle, mpsc::Receiver<ResyncRequest>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (ResyncHandle(sender), receiver)
}

pub(crate) fn unavailable(why: &str) -> CallError {
    CallError::Unavailable {
        service: "event-ingest",
        why: why.to_owned(),
    }
}

#[async_trait]
impl Feed for ResyncHandle {
    async fn resync(&self, target: &Target, from: EventSeq) -> Result<(), CallError> {
        let (answer, answered) = oneshot::channel();
        let request = ResyncRequest {
            target: target.clone(),
            from,
            answer,
        };
        self.0.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => unavailable("too many requests wait"),
            mpsc::error::TrySendError::Closed(_) => unavailable("it has ended"),
        })?;
        answered
            .await
            .map_err(|_| unavailable("it has ended"))
            .flatten()
    }
}
