//! The worker adapters of the fleet.

use async_trait::async_trait;
use bytes::Bytes;
use contracts::grpc::RemoteDispatch;
use contracts::rpc::{CallHead, CallStream, Dispatch, DispatchError, HttpHead};
use domain::ServiceKind;
use futures::StreamExt as _;

use super::Fleet;
use super::select::of_worker;

pub(super) struct FleetDispatch(pub(super) Fleet);

#[async_trait]
impl Dispatch for FleetDispatch {
    /// Of several adapters of a worker the next is tried where one is not reached, or does not find the worker. One
    /// that was lost a moment ago and has not been heard of since is left out.
    async fn call(
        &self,
        head: CallHead,
        body: Bytes,
    ) -> Result<(HttpHead, CallStream), DispatchError> {
        let Self(fleet) = self;
        let worker = head.worker.clone();
        let lost = |why: String| DispatchError::Adapter {
            worker: worker.clone(),
            source: why.into(),
        };
        let all = of_worker(&worker, fleet.live(ServiceKind::WorkerAdapter));
        let mut failure = lost("none is in the fleet".to_owned());
        for adapter in fleet.order(worker.as_str(), all) {
            if fleet.is_lost(&adapter) {
                failure = lost(format!("{}: it was lost a moment ago", adapter.address));
                continue;
            }
            let peer = match fleet.peer(&adapter) {
                Ok(peer) => peer,
                Err(why) => {
                    failure = lost(why);
                    continue;
                }
            };
            let remote = RemoteDispatch::new(peer);
            match remote.call(head.clone(), body.clone()).await {
                Ok((head, answer)) => {
                    let fleet = fleet.clone();
                    let watched = answer.inspect(move |down| {
                        if let Err(DispatchError::Adapter { .. }) = down {
                            fleet.has_failed(&adapter);
                        }
                    });
                    return Ok((head, watched.boxed()));
                }
                Err(error @ DispatchError::Adapter { .. }) => {
                    fleet.has_failed(&adapter);
                    failure = error;
                }
                // Another one may see it.
                Err(error @ DispatchError::UnknownWorker { .. }) => failure = error,
                Err(error) => return Err(error),
            }
        }
        Err(failure)
    }
}
