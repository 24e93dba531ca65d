//! All five services in one process, over the durable embedded bus and in-process calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bus::Bus;
use contracts::rpc::{Index, Shard};
use domain::InstanceId;
use router_api::RouterApi;
use service_kit::{BusSettings, CancellationToken, Clock, Context, Health, OpenBus, Process};
use tokio::time::Instant;

use crate::compose::{self, Given, Peers};

/// How often readiness is looked at while waiting for it.
const READY_POLL: Duration = Duration::from_millis(20);

/// What the services are told.
pub struct SuiteConfig {
    /// The folder of the log, the index and the bindings.
    pub data_dir: PathBuf,
    /// The engines.
    pub adapter: worker_adapter::Config,
    /// The secret under which binding keys are hashed; without it one is made and kept in the folder.
    pub affinity_secret: Option<String>,
    /// One router replica for each.
    pub routers: Vec<router_api::Config>,
}

/// The running services.
pub struct Suite {
    /// The router replicas, as configured.
    pub routers: Vec<router_api::Handle>,
    /// What each rank holds.
    pub index: Arc<dyn Index>,
    /// The index over HTTP, in the shape of other indexers.
    pub index_routes: axum::Router,
    /// The metrics, health and clock of all.
    pub context: Context,
    bus: OpenBus,
}

impl Suite {
    /// Builds all services, binds the routers' listeners, and spawns everything on `process`.
    pub async fn start(config: SuiteConfig, process: &Process) -> anyhow::Result<Self> {
        let context = Context {
            registry: prometheus::Registry::new(),
            health: Health::default(),
            clock: Clock::system(),
        };
        let folder = config.data_dir.join("bus");
        let bus = OpenBus::open(&BusSettings::default(), &folder, "rankway").await?;
        bus.register(&context.registry)?;

        let given = Given {
            data_dir: config.data_dir.clone(),
            bus: bus.bus(),
            context: context.clone(),
        };
        let ingest = compose::ingest(&given)?;
        let indexer = compose::indexer(&given, Shard::WHOLE, ingest.feed())?;
        let affinity = compose::affinity(&given, config.affinity_secret)?;
        let adapter = compose::adapter(&given, config.adapter)?;
        let peers = Peers {
            index: indexer.index(),
            affinity: affinity.affinity(),
            dispatch: adapter.dispatch(),
        };
        let index = peers.index.clone();
        let index_routes = indexer.routes();

        let mut routers = Vec::new();
        for (number, router) in config.routers.into_iter().enumerate() {
            let given = Given {
                context: router_context(&context, number),
                ..given.clone()
            };
            let instance = InstanceId::new(&format!("router-{}", number + 1))?;
            let router = compose::router(&given, router, peers.clone(), instance);
            routers.push(router.await?);
        }
        let handles = routers.iter().map(RouterApi::handle).collect();

        // Streams are finished by services that still run: routers end first.
        let late = CancellationToken::new();
        process.spawn("event-ingest", ingest.run(late.clone()));
        process.spawn("indexer", indexer.run(late.clone()));
        process.spawn("affinity-store", affinity.run(late.clone()));
        process.spawn("worker-adapter", adapter.run(late.clone()));
        process.spawn("routers", run_routers(routers, process.shutdown(), late));
        Ok(Self {
            routers: handles,
            index,
            index_routes,
            context,
            bus,
        })
    }

    /// The bus between the services.
    pub fn bus(&self) -> Arc<dyn Bus> {
        self.bus.bus()
    }

    /// Waits until every component is ready; after `patience`, an error that names those that are not.
    pub async fn ready(&self, patience: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let missing = self.context.health.missing();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let missing: Vec<String> = missing
                    .into_iter()
                    .map(|(component, why)| format!("{component}: {why}"))
                    .collect();
                bail!("not ready after {patience:?}: {}", missing.join("; "));
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Flushes and releases the data folder, once the services have ended.
    pub async fn close(self) {
        self.bus.close().await;
    }
}

/// The first router shares the process's registry; metrics of others would clash with its own.
fn router_context(context: &Context, number: usize) -> Context {
    match number {
        0 => context.clone(),
        _ => Context {
            registry: prometheus::Registry::new(),
            ..context.clone()
        },
    }
}

/// Runs the routers to their end, then lets the other services end.
async fn run_routers(
    routers: Vec<RouterApi>,
    shutdown: CancellationToken,
    late: CancellationToken,
) -> anyhow::Result<()> {
    let _ends_the_others = late.drop_guard();
    let running = routers.into_iter().map(|it| it.run(shutdown.clone()));
    futures::future::try_join_all(running).await?;
    Ok(())
}
