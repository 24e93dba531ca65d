//! The service: its listener, its tasks, its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use accounting::Totals;
use anyhow::Context as _;
use bus::Bus;
use contracts::rpc::{Affinity, Dispatch, Index};
use domain::InstanceId;
use routing::{Decision, Router};
use service_kit::{CancellationToken, Context, ListenError};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::admission::Admission;
use crate::body::Budget;
use crate::bound::Heard;
use crate::breaker::Breaker;
use crate::config::Config;
use crate::evidence::{self, Evidence, Watch};
use crate::leases::{Lanes, Leases, Store};
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::mind::{Ids, Mind};
use crate::mismatch::MismatchWatch;
use crate::outcome::Committed;
use crate::records::{News, Records};
use crate::replica::Replica;
use crate::shadow::Shadow;
use crate::tenant::{InvalidTenants, Tenants};
use crate::{
    admin, admission, bindings, drain, emptied, follow, identity, presence, public, records, shadow,
};

/// How long peers and the affinity store may take to hear the last of it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Decides where requests go, and carries them there.
pub struct RouterApi {
    listener: TcpListener,
    local_addr: SocketAddr,
    bus: Arc<dyn Bus>,
    replica: Arc<Replica>,
    lanes: Lanes,
    watches: mpsc::Receiver<Watch>,
    news: mpsc::Receiver<News>,
    /// What the policy in the shadow is to be asked about.
    compared: mpsc::Receiver<Arc<Decision>>,
}

/// Why the router cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Its address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The listener does not say where it is.
    #[error("read the address listened on")]
    Address(#[source] std::io::Error),
    /// Its tenants cannot be told apart or be kept apart.
    #[error(transparent)]
    Tenants(#[from] InvalidTenants),
    /// Another service has registered the same metrics.
    #[error("register metrics")]
    Metrics(#[from] prometheus::Error),
}

/// What can be asked of a router while it runs.
#[derive(Clone)]
pub struct Handle {
    address: SocketAddr,
    replica: Arc<Replica>,
    bus: Arc<dyn Bus>,
}

impl Handle {
    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its part of the admin API: `/api/v1/{workers,targets,decisions,decisions/{id},waterfall,config}` to look,
    /// `/api/v1/bindings` and `/api/v1/workers/{id}/drain|undrain` to act too.
    pub fn admin_routes(&self) -> axum::Router {
        admin::routes(self.replica.clone())
            .merge(bindings::routes(self.replica.clone()))
            .merge(drain::routes(self.replica.clone(), self.bus.clone()))
    }

    /// The waterfall of all requests it has seen the end of.
    pub fn totals(&self) -> Totals {
        self.replica.ledger.totals()
    }

    /// How many turns it has sent elsewhere for once, their conversations' bindings staying.
    pub fn excursions(&self) -> u64 {
        self.replica.metrics.excursions.get()
    }

    /// How often it has moved a conversation to another target.
    pub fn rebinds(&self) -> u64 {
        self.replica.metrics.rebinds.get()
    }
}

impl RouterApi {
    /// Listens on the configured address. Connections wait until [`RouterApi::run`].
    pub async fn bind(
        config: Config,
        bus: Arc<dyn Bus>,
        index: Arc<dyn Index>,
        affinity: Arc<dyn Affinity>,
        dispatch: Arc<dyn Dispatch>,
        context: Context,
        instance: InstanceId,
    ) -> Result<Self, BindError> {
        let listener = service_kit::listen(config.listen, "router.listen").await?;
        let local_addr = listener.local_addr().map_err(BindError::Address)?;
        let metrics = Metrics::new(&context.registry)?;
        let (leases, lanes) = Leases::new(metrics.untold.clone());
        let (evidence, watches) = Evidence::new(metrics.ranks.unwatched.clone());
        let (records, news) = Records::new(config.records, metrics.records_dropped.clone());
        let (shadow, compared) = Shadow::new(config.shadow, &context.registry)?;
        let mut router = Router::new(instance.clone(), config.mind());
        router.set_rank_sources(config.sources());
        if let Some(policy) = config.shadow {
            router.keep_for(policy);
        }
        let tenants = Tenants::new(
            &config.default_tenant,
            &config.tenants,
            config.salt_secret.as_ref(),
        )?;
        let replica = Replica {
            admission: Admission::new(&config.admission, metrics.queue.clone()),
            tenants,
            audit: Default::default(),
            mind: Mind::new(router),
            ids: Ids::new(&instance),
            clock: context.clock,
            config,
            instance,
            context,
            index,
            affinity,
            store_reads: Breaker::default(),
            store_writes: Breaker::default(),
            index_reads: Breaker::default(),
            heard: Heard::default(),
            fleet_read: watch::Sender::new(false),
            dispatch,
            leases: Arc::new(leases),
            evidence,
            ledger: Ledger::default(),
            records,
            shadow,
            bodies: Budget::default(),
            mismatch: MismatchWatch::new(metrics.token_mismatch.clone()),
            metrics,
            tokenizer: Default::default(),
            memory: Default::default(),
            emptied: Default::default(),
        };
        Ok(Self {
            listener,
            local_addr,
            bus,
            replica: Arc::new(replica),
            lanes,
            watches,
            news,
            compared,
        })
    }

    /// What can be asked of it while it runs.
    pub fn handle(&self) -> Handle {
        Handle {
            address: self.local_addr,
            replica: self.replica.clone(),
            bus: self.bus.clone(),
        }
    }

    /// Serves until `shutdown`; then accepts nothing more and lets streams end for `drain_seconds`.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self {
            listener,
            local_addr,
            bus,
            replica,
            lanes,
            watches,
            news,
            compared,
        } = self;
        let store = Store::new(replica.affinity.clone(), replica.metrics.untold.clone());
        let closing = CancellationToken::new();
        let mut notes = JoinSet::new();
        notes.spawn(lanes.serve(store.clone(), closing.clone()));
        notes.spawn(presence::announce(
            replica.clone(),
            bus.clone(),
            closing.clone(),
        ));
        notes.spawn(records::publish(
            replica.clone(),
            news,
            bus.clone(),
            closing.clone(),
        ));
        let committed = Arc::new(Committed::new(replica.clone()));
        let mut tasks = background(&replica, &bus, store, watches);
        tasks.spawn(shadow::serve(replica.clone(), compared));
        tasks.spawn(admission::serve(replica.clone(), shutdown.clone()));
        tasks.spawn(committed.clone().sweep());
        info!(%local_addr, policy = %replica.config.policy, "listening");
        let routes = public::routes(committed.clone());
        let server = service_kit::serve(listener, routes, shutdown.clone());
        let drained = async {
            shutdown.cancelled().await;
            tokio::time::sleep(Duration::from_secs(replica.config.drain_seconds)).await;
        };
        tokio::select! {
            biased;
            () = server => {}
            ended = tasks.join_next() => {
                ended.context("no background task")?.context("a background task ended")?;
                anyhow::bail!("a background task ended");
            }
            () = drained => warn!("streams did not end in time and are cut"),
        }
        tasks.shutdown().await;
        committed.close();
        closing.cancel();
        let last = async {
            follow::publish_once(&replica, bus.as_ref()).await?;
            while let Some(ended) = notes.join_next().await {
                ended?;
            }
            anyhow::Ok(())
        };
        match timeout(LAST_WORDS, last).await {
            Ok(told) => told.context("tell others of the end")?,
            // Their leases end by themselves.
            Err(_) => warn!("others were not told of everything that ended"),
        }
        Ok(())
    }
}

fn background(
    replica: &Arc<Replica>,
    bus: &Arc<dyn Bus>,
    store: Store,
    watches: mpsc::Receiver<Watch>,
) -> JoinSet<()> {
    let component = replica.context.health.component("router");
    let (drains_read, drains_are_read) = watch::channel(false);
    let read = [replica.fleet_read.subscribe(), drains_are_read];
    let mut tasks = JoinSet::new();
    tasks.spawn(follow::follow_fleet(replica.clone(), bus.clone()));
    tasks.spawn(follow::follow_drains(
        replica.clone(),
        bus.clone(),
        drains_read,
    ));
    tasks.spawn(follow::follow_incarnations(replica.clone(), bus.clone()));
    tasks.spawn(follow::follow_load(replica.clone(), bus.clone()));
    tasks.spawn(identity::follow_bindings(replica.clone(), bus.clone()));
    tasks.spawn(follow::follow_peers(replica.clone(), bus.clone()));
    tasks.spawn(follow::publish(replica.clone(), bus.clone()));
    tasks.spawn(evidence::serve(replica.clone(), watches));
    tasks.spawn(presence::show(replica.clone(), component.clone()));
    tasks.spawn(emptied::watch(replica.clone()));
    tasks.spawn(follow::expire(replica.clone(), component, read));
    tasks.spawn(store.renew(replica.leases.clone(), replica.instance.clone()));
    tasks
}
