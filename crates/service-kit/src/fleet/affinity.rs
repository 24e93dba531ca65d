//! The bindings of the fleet. Any store may write any binding, since each write names the revision it replaces; what
//! is in flight is known to one only, so that a conversation is asked about at one as long as it is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::affinity::{Binding, ConversationKey};
use async_trait::async_trait;
use contracts::grpc::{RemoteAffinity, limits};
use contracts::rpc::{
    Acquire, Affinity, Bound, CallError, Confirm, Move, Page, Reassign, Release, Renew, Search,
    Unbind,
};
use domain::{InstanceId, ServiceInstance, ServiceKind};
use futures::future::join_all;

use super::{Again, Fleet};

const NAME: &str = "affinity-store";

pub(super) struct FleetAffinity(pub(super) Fleet);

impl FleetAffinity {
    /// The stores in the order in which to ask them about a conversation.
    fn stores(&self, key: &ConversationKey) -> Vec<Arc<ServiceInstance>> {
        let ConversationKey {
            tenant,
            model,
            conversation,
        } = key;
        self.any(&format!("{tenant}\n{model}\n{conversation}"))
    }

    fn any(&self, key: &str) -> Vec<Arc<ServiceInstance>> {
        self.0.order(key, self.0.live(ServiceKind::AffinityStore))
    }
}

/// Asks `$stores` in turn; `$again` says when a second one may be.
macro_rules! ask {
    ($self:ident, $stores:expr, $again:ident, $patience:expr, $store:ident => $call:expr) => {
        $self
            .0
            .ask(
                NAME,
                &$stores,
                (Again::$again, $patience),
                |peer| async move {
                    let $store = RemoteAffinity::new(peer);
                    $call.await
                },
            )
            .await
    };
}

#[async_trait]
impl Affinity for FleetAffinity {
    async fn get(&self, key: &ConversationKey) -> Result<Option<Bound>, CallError> {
        ask!(self, self.stores(key), Always, limits::LOOKUP, it => it.get(key))
    }

    async fn acquire(&self, request: Acquire) -> Result<Bound, CallError> {
        let (stores, request) = (self.stores(&request.key), &request);
        ask!(self, stores, IfUnreached, limits::LOOKUP, it => it.acquire(request.clone()))
    }

    async fn confirm(&self, request: Confirm) -> Result<Bound, CallError> {
        let (stores, request) = (self.stores(&request.key), &request);
        ask!(self, stores, Always, limits::REPORT, it => it.confirm(request.clone()))
    }

    async fn rebind(&self, request: Move) -> Result<Bound, CallError> {
        let (stores, request) = (self.stores(&request.key), &request);
        ask!(self, stores, IfUnreached, limits::LOOKUP, it => it.rebind(request.clone()))
    }

    async fn release(&self, request: Release) -> Result<(), CallError> {
        let (stores, request) = (self.stores(&request.key), &request);
        ask!(self, stores, IfUnreached, limits::REPORT, it => it.release(request.clone()))
    }

    /// Each store is told of the conversations that it is asked about first.
    async fn renew(&self, request: Renew) -> Result<(), CallError> {
        let mut shares: BTreeMap<Option<InstanceId>, (Vec<_>, Vec<ConversationKey>)> =
            BTreeMap::new();
        for key in request.keys {
            let stores = self.stores(&key);
            let first = stores.first().map(|it| it.id.clone());
            let share = shares.entry(first).or_insert_with(|| (stores, Vec::new()));
            share.1.push(key);
        }
        let actor = &request.actor;
        let renewed = shares.into_values().map(|(stores, keys)| async move {
            let renew = &Renew {
                actor: actor.clone(),
                keys,
            };
            ask!(self, stores, Always, limits::REPORT, it => it.renew(renew.clone()))
        });
        join_all(renewed).await.into_iter().collect()
    }

    async fn list(&self, limit: usize) -> Result<Vec<Bound>, CallError> {
        ask!(self, self.any(""), Always, limits::REPORT, it => it.list(limit))
    }

    async fn search(&self, search: Search) -> Result<Page, CallError> {
        let search = &search;
        ask!(self, self.any(""), Always, limits::REPORT, it => it.search(search.clone()))
    }

    async fn reassign(&self, request: Reassign) -> Result<Bound, CallError> {
        let (stores, request) = (self.stores(&request.key), &request);
        ask!(self, stores, IfUnreached, limits::REPORT, it => it.reassign(request.clone()))
    }

    async fn unbind(&self, request: Unbind) -> Result<(), CallError> {
        let (stores, request) = (self.stores(&request.key), &request);
        ask!(self, stores, IfUnreached, limits::REPORT, it => it.unbind(request.clone()))
    }

    async fn import(&self, binding: Binding) -> Result<Option<Bound>, CallError> {
        let (stores, binding) = (self.stores(&binding.key), &binding);
        ask!(self, stores, Always, limits::REPORT, it => it.import(binding.clone()))
    }
}
