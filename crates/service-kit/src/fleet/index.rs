//! The index of the fleet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use contracts::grpc::{RemoteIndex, limits};
use contracts::rpc::{
    CallError, DumpStream, Index, LocateRequest, OverlapAnswer, OverlapRequest, Shards,
    TargetDigest,
};
use domain::{DpRank, ServiceInstance, ServiceKind, Share};

use super::{Again, Fleet};

const NAME: &str = "indexer";
/// How long a replica has before the next one is asked: two fit into [`Shards::DEADLINE`].
const REPLICA: Duration = Duration::from_millis(20);

/// All shards that are there. The replicas of a shard are asked in the same order by all routers, so that each knows
/// what requests have carried before.
pub(super) struct FleetIndex(pub(super) Fleet);

/// The replicas of one shard.
pub(super) struct Replicas {
    pub(super) fleet: Fleet,
    pub(super) services: Vec<Arc<ServiceInstance>>,
}

impl FleetIndex {
    fn shards(&self) -> Vec<Replicas> {
        let mut shards: BTreeMap<(u32, u32), Vec<Arc<ServiceInstance>>> = BTreeMap::new();
        for service in self.0.live(ServiceKind::Indexer) {
            let shard = match service.share {
                Share::Shard { index, of } => (of, index),
                Share::Whole | Share::Workers(_) => (1, 0),
            };
            shards.entry(shard).or_default().push(service);
        }
        let replicas = |((of, index), services)| Replicas {
            services: self.0.order(&format!("{index}/{of}"), services),
            fleet: self.0.clone(),
        };
        shards.into_iter().map(replicas).collect()
    }

    fn whole(&self) -> Arc<dyn Index> {
        let mut shards = self.shards();
        match (shards.pop(), shards.is_empty()) {
            (Some(only), true) => Arc::new(only),
            (last, _) => {
                let all = shards.into_iter().chain(last);
                let all = all.map(|it| -> Arc<dyn Index> { Arc::new(it) });
                Arc::new(Shards::new(all.collect(), Shards::DEADLINE))
            }
        }
    }

    fn any(&self) -> Result<Arc<dyn Index>, CallError> {
        if self.0.live(ServiceKind::Indexer).is_empty() {
            return Err(CallError::Unreached {
                service: NAME,
                why: "none is in the fleet".to_owned(),
            });
        }
        Ok(self.whole())
    }
}

#[async_trait]
impl Index for FleetIndex {
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        self.any()?.overlap(request).await
    }

    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        self.any()?.locate(request).await
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        self.any()?.digests().await
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        self.any()?.dump().await
    }
}

/// Asks the replicas of a shard in turn.
macro_rules! ask {
    ($self:ident, $patience:expr, $index:ident => $call:expr) => {
        $self
            .fleet
            .ask(
                NAME,
                &$self.services,
                (Again::Always, $patience),
                |peer| async move {
                    let $index = RemoteIndex::new(peer);
                    $call.await
                },
            )
            .await
    };
}

#[async_trait]
impl Index for Replicas {
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        let request = &request;
        ask!(self, REPLICA, index => index.overlap(request.clone()))
    }

    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        let patience = request.deadline.saturating_add(limits::LOOKUP);
        let request = &request;
        ask!(self, patience, index => index.locate(request.clone()))
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        ask!(self, limits::VERIFY, index => index.digests())
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        ask!(self, limits::VERIFY, index => index.dump())
    }
}
