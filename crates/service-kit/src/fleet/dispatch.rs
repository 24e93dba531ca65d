//! The worker adapters of the fleet.

use async_trait::async_trait;
use bytes::Bytes;
use contracts::grpc::RemoteDispatch;
use contracts::rpc::{CallHead, CallStream, Dispatch, DispatchError, HttpHead};
use domain::ServiceKind;

use super::Fleet;
use super::select::of_worker;

pub(super) struct FleetDispatch(pub(super) Fleet);

#[async_trait]
impl Dispatch for FleetDispatch {
    /// Of several adapters of a worker the next is tried where one cannot be reached. Where no adapter has the
    /// worker it is not registered, whatever the fleet says of the worker itself.
    async fn call(
        &self,
        head: CallHead,
        body: Bytes,
    ) -> Result<(HttpHead, CallStream), DispatchError> {
        let worker = head.worker.clone();
        let all = of_worker(&worker, self.0.live(ServiceKind::WorkerAdapter));
        let mut failure = DispatchError::UnknownWorker {
            worker: worker.clone(),
        };
        for adapter in self.0.order(worker.as_str(), all) {
            let peer = match self.0.peer(&adapter) {
                Ok(peer) => peer,
                Err(why) => {
                    failure = DispatchError::Connect {
                        worker: worker.clone(),
                        url: adapter.address.clone(),
                        source: why.into(),
                    };
                    continue;
                }
            };
            let dispatch = RemoteDispatch::new(peer);
            match dispatch.call(head.clone(), body.clone()).await {
                // It is the adapter that is not there; of the worker nothing is said.
                Err(DispatchError::Connect { url, source, .. }) if url == adapter.address => {
                    self.0.has_failed(&adapter);
                    failure = DispatchError::Connect {
                        worker: worker.clone(),
                        url,
                        source,
                    };
                }
                called => return called,
            }
        }
        Err(failure)
    }
}
