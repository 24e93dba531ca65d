//! The event ingests of the fleet.

use async_trait::async_trait;
use contracts::grpc::{RemoteFeed, limits};
use contracts::rpc::{CallError, Feed};
use domain::{EventSeq, ServiceKind, Target};

use super::select::of_worker;
use super::{Again, Fleet};

pub(super) struct FleetFeed(pub(super) Fleet);

#[async_trait]
impl Feed for FleetFeed {
    async fn resync(&self, target: &Target, from: EventSeq) -> Result<(), CallError> {
        let all = of_worker(&target.worker, self.0.live(ServiceKind::EventIngest));
        let ingests = self.0.order(target.worker.as_str(), all);
        let terms = (Again::Always, limits::REPORT);
        let asked = self
            .0
            .ask("event-ingest", &ingests, terms, |peer| async move {
                RemoteFeed::new(peer).resync(target, from).await
            });
        asked.await
    }
}
