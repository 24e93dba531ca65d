//! `rankway ingest|indexer|affinity|router|adapter`: one service in a process of its own, which finds the others in
//! the fleet.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use contracts::grpc::{Services, limits};
use contracts::rpc::{Index, Shard, Shards};
use domain::{InstanceId, ServiceInstance, ServiceKind, Share};
use rankway::compose::{self, Given, Peers};
use service_kit::{
    CancellationToken, Clock, Context, Ended, Fleet, GrpcListener, Health, OpenBus, Presence,
    Process, SameSecret,
};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::cli::{IndexerArgs, ServiceArgs};
use crate::failure::Failure;
use crate::index_api;
use crate::settings::Settings;

/// How long an indexer waits for the fleet, to see whom it may begin with.
const FLEET_PATIENCE: Duration = Duration::from_secs(5);
/// What is logged where nothing else is asked for. The client of NATS says every try to connect; the bus says it seldom.
const LOGGED: &str = "info,async_nats=off";

/// Runs the command of any service.
pub(crate) fn run(kind: ServiceKind, args: &ServiceArgs) -> Result<(), Failure> {
    if kind == ServiceKind::Router {
        args.takes_no_calls()?;
    }
    start(kind, Settings::read(&args.settings, args.own())?)
}

/// Runs that of an indexer.
pub(crate) fn indexer(args: &IndexerArgs) -> Result<(), Failure> {
    let settings = Settings::read(&args.service.settings, args.own())?;
    start(ServiceKind::Indexer, settings)
}

fn start(kind: ServiceKind, settings: Settings) -> Result<(), Failure> {
    settings.starts_alone(kind)?;
    service_kit::init_logging(LOGGED).map_err(Failure::wrong_use)?;
    settings.warn();
    crate::runtime()?.block_on(serve(kind, settings))?;
    Ok(())
}

/// A service in this process, and what it needs around it.
struct Alone {
    settings: Settings,
    given: Given,
    fleet: Fleet,
    process: Process,
    instance: InstanceId,
    /// Ends the service, once those that call it have been served.
    late: CancellationToken,
}

async fn serve(kind: ServiceKind, settings: Settings) -> anyhow::Result<()> {
    let admin = service_kit::listen(settings.admin.listen, "admin.listen").await?;
    let credentials = settings.grpc.credentials()?;
    let instance = instance(kind, &settings)?;
    let context = Context {
        registry: prometheus::Registry::new(),
        health: Health::default(),
        clock: Clock::system(),
    };
    let folder = settings.data_dir.join("bus");
    let bus = OpenBus::open(&settings.bus, &folder, instance.as_str()).await?;
    bus.register(&context.registry)?;
    let alone = Alone {
        given: Given {
            data_dir: settings.data_dir.clone(),
            bus: bus.bus(),
            context: context.clone(),
        },
        fleet: Fleet::new(context.clock, credentials),
        process: process(kind, &settings),
        late: CancellationToken::new(),
        instance,
        settings,
    };
    let routes = match kind {
        ServiceKind::EventIngest => alone.ingest().await?,
        ServiceKind::Indexer => alone.indexer().await?,
        ServiceKind::AffinityStore => alone.affinity().await?,
        ServiceKind::WorkerAdapter => alone.adapter().await?,
        ServiceKind::Router => alone.router().await?,
    };
    let routes = service_kit::admin_routes(context).merge(routes);
    let routes = service_kit::protect(routes, alone.settings.admin.token.clone());
    let address = admin.local_addr().context("read the admin address")?;
    // It answers to the very end: probes shall read that the process is draining.
    let late = alone.late.clone();
    alone.process.spawn("admin", async move {
        service_kit::serve(admin, routes, late).await;
        Ok(())
    });
    info!(instance = %alone.instance, admin = %format!("http://{address}"), "serving");
    let ended = alone
        .process
        .run_until(std::future::pending::<anyhow::Result<()>>());
    let ended = ended.await;
    bus.close().await;
    match ended? {
        Ended::Signal => info!("ended"),
        Ended::Done(()) => {}
    }
    Ok(())
}

/// Streams of clients go through routers and adapters: those end when their streams have, within what is set.
fn process(kind: ServiceKind, settings: &Settings) -> Process {
    match kind {
        ServiceKind::Router | ServiceKind::WorkerAdapter => {
            Process::draining(Duration::from_secs(settings.router.drain_seconds))
        }
        ServiceKind::EventIngest | ServiceKind::Indexer | ServiceKind::AffinityStore => {
            Process::default()
        }
    }
}

/// The name of this process in the fleet.
fn instance(kind: ServiceKind, settings: &Settings) -> anyhow::Result<InstanceId> {
    if let Some(given) = &settings.instance {
        return Ok(InstanceId::new(given)?);
    }
    // Random, as every map's seed is: no two processes shall have the same.
    let random = RandomState::new().build_hasher().finish();
    Ok(InstanceId::new(&format!("{}-{random:016x}", name(kind)))?)
}

const fn name(kind: ServiceKind) -> &'static str {
    match kind {
        ServiceKind::EventIngest => "ingest",
        ServiceKind::Indexer => "indexer",
        ServiceKind::AffinityStore => "affinity",
        ServiceKind::Router => "router",
        ServiceKind::WorkerAdapter => "adapter",
    }
}

impl Alone {
    async fn ingest(&self) -> anyhow::Result<axum::Router> {
        let ingest = compose::ingest(&self.given)?;
        let services = Services::default().feed(ingest.feed());
        self.answer(ServiceKind::EventIngest, Share::Whole, None, services)
            .await?;
        let run = ingest.run(self.late.clone());
        self.process.spawn("event-ingest", run);
        Ok(axum::Router::new())
    }

    async fn indexer(&self) -> anyhow::Result<axum::Router> {
        let shard = self.settings.indexer.shard.parse::<Shard>()?;
        self.follow_fleet();
        let indexer = compose::indexer(&self.given, shard, self.fleet.feed())?;
        let indexer = indexer.with_siblings(self.siblings(shard).await);
        let (index, routes) = (indexer.index(), indexer.routes());
        let services = Services::default().index(index.clone());
        self.answer(ServiceKind::Indexer, shard.share(), None, services)
            .await?;
        let run = indexer.run(self.late.clone());
        let folder = self.given.data_dir.display();
        let kept = format!("keep the index in {folder} (give another folder with --data-dir)");
        self.process
            .spawn("indexer", async move { run.await.context(kept) });
        Ok(index_api::routes(index).merge(routes))
    }

    /// Whom an indexer without a store may begin with.
    async fn siblings(&self, shard: Shard) -> Vec<Arc<dyn Index>> {
        if timeout(FLEET_PATIENCE, self.fleet.read()).await.is_err() {
            warn!(
                "the fleet is not read in time: where there is no store, the log is read from its beginning"
            );
        }
        let live = self.fleet.live(ServiceKind::Indexer);
        let now = self.given.context.clock.now();
        let sets = indexer::siblings(live.iter().map(|it| &**it), shard, &self.instance, now);
        let whole = |set: Vec<&ServiceInstance>| -> Arc<dyn Index> {
            let shards = set.into_iter().map(|it| self.fleet.index_of(it));
            Arc::new(Shards::new(shards.collect(), limits::VERIFY))
        };
        sets.into_iter().map(whole).collect()
    }

    async fn affinity(&self) -> anyhow::Result<axum::Router> {
        let affinity = compose::affinity(&self.given, self.settings.affinity.secret.clone())?;
        let services = Services::default().affinity(affinity.affinity());
        let secret = self.settings.affinity.secret.as_deref();
        let secret = secret.map(|it| SameSecret::new("affinity.secret", it));
        self.answer(ServiceKind::AffinityStore, Share::Whole, secret, services)
            .await?;
        let run = affinity.run(self.late.clone());
        self.process.spawn("affinity-store", run);
        Ok(axum::Router::new())
    }

    async fn adapter(&self) -> anyhow::Result<axum::Router> {
        let config = self.settings.adapter();
        let workers = config.clone().named()?.into_iter().map(|(id, _)| id);
        let share = Share::Workers(workers.collect());
        let adapter = compose::adapter(&self.given, config)?;
        let services = Services::default().dispatch(adapter.dispatch());
        self.answer(ServiceKind::WorkerAdapter, share, None, services)
            .await?;
        let run = adapter.run(self.late.clone());
        self.process.spawn("worker-adapter", run);
        Ok(axum::Router::new())
    }

    async fn router(&self) -> anyhow::Result<axum::Router> {
        self.follow_fleet();
        let peers = Peers {
            index: self.fleet.index(),
            affinity: self.fleet.affinity(),
            dispatch: self.fleet.dispatch(),
        };
        let config = self.settings.router.clone();
        let router = compose::router(&self.given, config, peers.clone(), self.instance.clone());
        let router = router.await?;
        let handle = router.handle();
        info!(api = %format!("http://{}", handle.address()), "serving clients");
        let (shutdown, late) = (self.process.shutdown(), self.late.clone());
        let health = self.given.context.health.clone();
        self.process.spawn("router", async move {
            let _ends_the_rest = late.drop_guard();
            let stop = CancellationToken::new();
            let stopping = async {
                health.notice(shutdown).await;
                stop.cancel();
            };
            let (served, ()) = tokio::join!(router.run(stop.clone()), stopping);
            served
        });
        Ok(handle.admin_routes().merge(index_api::routes(peers.index)))
    }

    /// Serves calls, and says so in the fleet, until the process shall end and the last call has.
    async fn answer(
        &self,
        kind: ServiceKind,
        share: Share,
        secret: Option<SameSecret>,
        services: Services,
    ) -> anyhow::Result<()> {
        let listener = GrpcListener::bind(&self.settings.grpc).await?;
        info!(address = listener.address(), "taking calls");
        let presence = Presence {
            id: self.instance.clone(),
            kind,
            address: listener.address().to_owned(),
            share,
            secret,
        };
        let Given { bus, context, .. } = self.given.clone();
        let (shutdown, late) = (self.process.shutdown(), self.late.clone());
        let ended = late.clone();
        let told = context.clone();
        self.process.spawn("presence", async move {
            presence.keep(bus, told, Vec::new, ended).await;
            Ok(())
        });
        self.process.spawn("grpc", async move {
            let _ends_the_rest = late.drop_guard();
            listener.serve(services, context, shutdown).await
        });
        Ok(())
    }

    fn follow_fleet(&self) {
        let component = self.given.context.health.component("fleet");
        let following = self.fleet.clone().follow(self.given.bus.clone(), component);
        let late = self.late.clone();
        self.process.spawn("fleet", async move {
            tokio::select! {
                () = following => {}
                () = late.cancelled() => {}
            }
            Ok(())
        });
    }
}
