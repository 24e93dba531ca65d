//! The other services, found in `fleet`: origins of calls whose addresses follow it.

mod affinity;
mod dispatch;
mod feed;
mod index;
mod select;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bus::{Bus, BusError, Change, Key};
use contracts::grpc::{Credentials, Peer};
use contracts::rpc::{Affinity, CallError, Dispatch, Feed, Index};
use contracts::{FleetEntry, topics};
use domain::{InstanceId, ServiceInstance, ServiceKind, Timestamp};
use futures::TryStreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::{Clock, Component};

pub use select::in_turn;

/// Between attempts to read a bus that fails.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long one that has failed is asked last at least: until it is heard of again, since leases of the dead take 15 s
/// to end.
const AVOID: Duration = Duration::from_secs(3);
/// Whoever stops waiting for an answer after this time does so because it is late: routers do after 50 ms, or where a
/// second one may be asked after 20 ms.
const LATE: Duration = Duration::from_millis(20);

/// The fleet as this process knows it. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Fleet {
    clock: Clock,
    credentials: Option<Arc<Credentials>>,
    /// Whether it has been read.
    read: Arc<watch::Sender<bool>>,
    /// Each critical section is one look-up or change; never held across an await.
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    services: BTreeMap<Key, Arc<ServiceInstance>>,
    /// When the table was last heard of. Leases are judged as of then: a bus that is away ends none.
    heard: Timestamp,
    /// Connections, by address; those of services that have gone are forgotten.
    peers: BTreeMap<String, Peer>,
    failed: BTreeMap<InstanceId, Failure>,
}

/// That a service did not answer.
#[derive(Clone, Copy)]
struct Failure {
    at: Instant,
    /// Whether it has been heard of since. A process that was killed or is frozen is not.
    heard_since: bool,
}

impl Failure {
    fn is_over(&self) -> bool {
        self.heard_since && AVOID <= self.at.elapsed()
    }
}

/// A service that is waited for. Dropped before its answer it has failed, if that was late.
struct Waiting<'a> {
    fleet: &'a Fleet,
    service: &'a ServiceInstance,
    since: Instant,
    answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered && LATE <= self.since.elapsed() {
            self.fleet.has_failed(self.service);
        }
    }
}

/// Whether a call may be made again although it may have been carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It leaves the same behind, however often it is made.
    Always,
    /// Only where it certainly was not carried out.
    IfUnreached,
}

impl Fleet {
    /// A fleet of which nothing is known before [`Fleet::follow`] runs. Services are called with `credentials`.
    pub fn new(clock: Clock, credentials: Option<Credentials>) -> Self {
        Self {
            clock,
            credentials: credentials.map(Arc::new),
            read: Arc::default(),
            known: Arc::default(),
        }
    }

    /// Follows the table, for ever. `component` is ready once it has been read.
    pub async fn follow(self, bus: Arc<dyn Bus>, component: Component) {
        component.waiting("the fleet has not been read yet");
        loop {
            match self.follow_once(bus.as_ref(), &component).await {
                Ok(()) => warn!("the bus has ended the stream of the fleet; reading again"),
                Err(error) => warn!(%error, "the fleet cannot be read; reading again"),
            }
            sleep(RETRY_AFTER).await;
        }
    }

    async fn follow_once(&self, bus: &dyn Bus, component: &Component) -> Result<(), BusError> {
        let mut changes = bus.watch(&topics::FLEET.table).await?;
        // What was known stands until all has been read anew.
        let mut anew = Some(BTreeMap::new());
        while let Some(change) = changes.try_next().await? {
            let now = self.clock.now();
            let mut known = self.lock();
            known.heard = now;
            match change {
                Change::Put(key, entry) => match FleetEntry::heard(&entry.value, &key.0, now) {
                    Ok(FleetEntry::Service(service)) => {
                        if let Some(failure) = known.failed.get_mut(&service.id) {
                            failure.heard_since = true;
                        }
                        let services = anew.as_mut().unwrap_or(&mut known.services);
                        services.insert(key, Arc::new(service));
                    }
                    Ok(FleetEntry::Worker(_)) => {}
                    Err(error) => warn!(%error, "an entry of the fleet makes no sense"),
                },
                Change::Deleted(key) => {
                    let services = anew.as_mut().unwrap_or(&mut known.services);
                    services.remove(&key);
                }
                Change::CaughtUp => {
                    if let Some(read) = anew.take() {
                        known.services = read;
                    }
                    self.read.send_replace(true);
                    component.ready();
                }
            }
            known.forget();
        }
        Ok(())
    }

    /// Resolves once the fleet has been read for the first time.
    pub async fn read(&self) {
        // The sender is kept beside the receiver.
        let mut read = self.read.subscribe();
        let _read = read.wait_for(|read| *read).await;
    }

    /// The index of one indexer.
    pub fn index_of(&self, service: &ServiceInstance) -> Arc<dyn Index> {
        Arc::new(index::Replicas {
            fleet: self.clone(),
            services: vec![Arc::new(service.clone())],
        })
    }

    /// Services of a kind that may be called: those whose lease stands, ready or not.
    pub fn live(&self, kind: ServiceKind) -> Vec<Arc<ServiceInstance>> {
        let known = self.lock();
        let live = known
            .services
            .values()
            .filter(|it| it.kind == kind && !it.address.is_empty() && known.heard < it.lease_until);
        live.cloned().collect()
    }

    /// The index: all shards as one, of each the replicas in turn.
    pub fn index(&self) -> Arc<dyn Index> {
        Arc::new(index::FleetIndex(self.clone()))
    }

    /// Bindings: for each conversation the same one of all stores, as long as it is there.
    pub fn affinity(&self) -> Arc<dyn Affinity> {
        Arc::new(affinity::FleetAffinity(self.clone()))
    }

    /// Engines: each worker's by its adapter.
    pub fn dispatch(&self) -> Arc<dyn Dispatch> {
        Arc::new(dispatch::FleetDispatch(self.clone()))
    }

    /// Events once more: each worker's by its ingest.
    pub fn feed(&self) -> Arc<dyn Feed> {
        Arc::new(feed::FleetFeed(self.clone()))
    }

    /// `services` in the order in which to ask them about `key`: those that have just failed last.
    fn order(&self, key: &str, services: Vec<Arc<ServiceInstance>>) -> Vec<Arc<ServiceInstance>> {
        let mut ordered = in_turn(key, services);
        let known = self.lock();
        ordered.sort_by_key(|it| {
            let failed = known.failed.get(&it.id);
            failed.is_some_and(|it| !it.is_over())
        });
        ordered
    }

    /// Whether it is not worth a call: it has failed a moment ago, and nothing has been heard of it since.
    fn is_lost(&self, service: &ServiceInstance) -> bool {
        let known = self.lock();
        let failed = known.failed.get(&service.id);
        failed.is_some_and(|it| !it.heard_since && it.at.elapsed() < AVOID)
    }

    fn peer(&self, service: &ServiceInstance) -> Result<Peer, String> {
        let mut known = self.lock();
        if let Some(peer) = known.peers.get(&service.address) {
            return Ok(peer.clone());
        }
        let peer = Peer::at(&service.address, self.credentials.as_deref());
        let peer = peer.map_err(|why| why.to_string())?;
        known.peers.insert(service.address.clone(), peer.clone());
        Ok(peer)
    }

    fn has_failed(&self, service: &ServiceInstance) {
        let failure = Failure {
            at: Instant::now(),
            heard_since: false,
        };
        self.lock().failed.insert(service.id.clone(), failure);
    }

    /// Asks one of `services` after the other, until one answers or it may not be asked again. Each but the last
    /// has `patience`.
    async fn ask<T, F>(
        &self,
        name: &'static str,
        services: &[Arc<ServiceInstance>],
        (again, patience): (Again, Duration),
        call: impl Fn(Peer) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        let mut failure = CallError::Unreached {
            service: name,
            why: "none is in the fleet".to_owned(),
        };
        for (place, service) in services.iter().enumerate() {
            let is_last = place + 1 == services.len();
            let mut waiting = Waiting {
                fleet: self,
                service,
                since: Instant::now(),
                answered: false,
            };
            let asked = match self.peer(service) {
                Ok(peer) if is_last => call(peer).await,
                Ok(peer) => {
                    let answer = timeout(patience, call(peer)).await;
                    answer.unwrap_or(Err(CallError::DeadlineExceeded { service: name }))
                }
                Err(why) => Err(CallError::Unreached { service: name, why }),
            };
            waiting.answered = true;
            let error = match asked {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match &error {
                CallError::Unreached { .. } => {}
                CallError::Unavailable { .. } | CallError::DeadlineExceeded { .. }
                    if again == Again::Always => {}
                CallError::Unavailable { .. } | CallError::DeadlineExceeded { .. } => {
                    self.has_failed(service);
                    return Err(error);
                }
                CallError::FailedPrecondition { .. } | CallError::InvalidArgument { .. } => {
                    return Err(error);
                }
            }
            self.has_failed(service);
            failure = error;
        }
        Err(failure)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nobody can leave it half changed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Drops what is kept of services that are not there any more.
    fn forget(&mut self) {
        let Self {
            services,
            peers,
            failed,
            ..
        } = self;
        peers.retain(|address, _| services.values().any(|it| it.address == *address));
        failed.retain(|id, it| !it.is_over() && services.values().any(|it| it.id == *id));
    }
}
