//! Everything around one router.

use std::sync::Arc;
use std::time::Duration;

use affinity_store::{AffinityStore, Secret};
use bus::{Bus, MemoryBus};
use contracts::rpc::{Affinity, Dispatch};
use contracts::topics;
use domain::InstanceId;
use router_api::{Config, Handle, RouterApi};
use serde_json::Value;
use service_kit::{CancellationToken, Clock, Context, Health};
use tokio::task::{AbortHandle, JoinSet};
use worker_adapter::{WorkerAdapter, WorkerConfig};

use crate::client::{Answer, Client};
use crate::dispatch::Telling;
use crate::engine::Engine;
use crate::index::FakeIndex;

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) index: Arc<FakeIndex>,
    pub(crate) affinity: Arc<dyn Affinity>,
    pub(crate) handle: Handle,
    pub(crate) health: Health,
    pub(crate) shutdown: CancellationToken,
    pub(crate) tasks: JoinSet<anyhow::Result<()>>,
    admin: Client,
    pub(crate) registry: prometheus::Registry,
    pub(crate) bus: Arc<dyn Bus>,
    dispatch: Arc<dyn Dispatch>,
    store: AbortHandle,
}

pub(crate) fn config() -> Config {
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    }
}

/// Workers `w1`, `w2`, ... at these URLs.
pub(crate) fn workers(urls: &[&str]) -> Vec<WorkerConfig> {
    let worker = |(number, url): (usize, &&str)| WorkerConfig {
        id: Some(format!("w{}", number + 1).parse().unwrap()),
        // Nobody listens to them here: the index says what a test wants.
        kv_events: Some("tcp://127.0.0.1:1".parse().unwrap()),
        ..WorkerConfig::at(url.parse().unwrap())
    };
    urls.iter().enumerate().map(worker).collect()
}

impl World {
    /// A router before these engines, once it is ready.
    pub(crate) async fn before(engines: &[&Engine]) -> Self {
        Self::with(config(), engines).await
    }

    pub(crate) async fn with(config: Config, engines: &[&Engine]) -> Self {
        let urls: Vec<&str> = engines.iter().map(|it| it.url.as_str()).collect();
        Self::of(config, workers(&urls)).await
    }

    /// A router before these workers, once it is ready.
    pub(crate) async fn of(config: Config, workers: Vec<WorkerConfig>) -> Self {
        let bus = Arc::new(MemoryBus::new(&topics::LAYOUT));
        Self::over(bus, config, workers).await
    }

    /// The same over a bus that a test has made.
    pub(crate) async fn over(
        bus: Arc<dyn Bus>,
        config: Config,
        workers: Vec<WorkerConfig>,
    ) -> Self {
        let expected = workers.len();
        let health = Health::default();
        let context = Context {
            registry: prometheus::Registry::new(),
            health: health.clone(),
            clock: Clock::system(),
        };
        let adapter = worker_adapter::Config { workers };
        let adapter = WorkerAdapter::new(adapter, bus.clone(), context.clone()).unwrap();
        let store = affinity_store::Config {
            secret: Some(Secret::new("a secret of the tests".to_owned())),
            ..affinity_store::Config::default()
        };
        let store = AffinityStore::new(store, bus.clone(), context.clone()).unwrap();
        let affinity = store.affinity();
        let index = Arc::new(FakeIndex::cold());
        let instance = InstanceId::new("router-1").unwrap();
        let registry = context.registry.clone();
        let dispatch: Arc<dyn Dispatch> = Arc::new(Telling(adapter.dispatch()));
        let router = RouterApi::bind(
            config,
            bus.clone(),
            index.clone(),
            affinity.clone(),
            dispatch.clone(),
            context,
            instance,
        );
        let router = router.await.unwrap();
        let handle = router.handle();
        let admin = serve_admin(&handle).await;
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        // The others serve until the test ends.
        tasks.spawn(adapter.run(CancellationToken::new()));
        let store = tasks.spawn(store.run(CancellationToken::new()));
        tasks.spawn(router.run(shutdown.clone()));
        let world = Self {
            client: Client::to(handle.address()),
            index,
            affinity,
            handle,
            health,
            shutdown,
            tasks,
            admin,
            registry,
            bus,
            dispatch,
            store,
        };
        if expected > 0 {
            world
                .until(async || world.known_workers().await == expected)
                .await;
            world
                .until(async || world.health.missing().is_empty())
                .await;
        }
        world
    }

    /// A second router beside the first, behind the same bus, once it is ready: where it listens, and what
    /// ends it.
    pub(crate) async fn another(&mut self, name: &str) -> (Client, CancellationToken) {
        self.another_with(config(), name).await
    }

    pub(crate) async fn another_with(
        &mut self,
        config: Config,
        name: &str,
    ) -> (Client, CancellationToken) {
        let health = Health::default();
        let context = Context {
            registry: prometheus::Registry::new(),
            health: health.clone(),
            clock: Clock::system(),
        };
        let router = RouterApi::bind(
            config,
            self.bus.clone(),
            self.index.clone(),
            self.affinity.clone(),
            self.dispatch.clone(),
            context,
            InstanceId::new(name).unwrap(),
        );
        let router = router.await.unwrap();
        let client = Client::to(router.handle().address());
        let shutdown = CancellationToken::new();
        self.tasks.spawn(router.run(shutdown.clone()));
        self.until(async || health.missing().is_empty()).await;
        (client, shutdown)
    }

    async fn known_workers(&self) -> usize {
        let workers = self.client.get("/workers").await.json();
        let workers = workers["workers"].as_array().unwrap();
        workers.iter().filter(|it| it["state"] == "ready").count()
    }

    pub(crate) async fn admin(&self, path: &str) -> Value {
        self.admin.get(&format!("/api/v1/{path}")).await.json()
    }

    pub(crate) async fn admin_get(&self, path: &str) -> Answer {
        self.admin.get(&format!("/api/v1/{path}")).await
    }

    pub(crate) async fn admin_post(&self, path: &str, body: &Value) -> Answer {
        let path = format!("/api/v1/{path}");
        self.admin.post(&path, &[], &body.to_string()).await
    }

    /// Ends the affinity store, for good.
    pub(crate) async fn silence_affinity(&self) {
        self.store.abort();
        self.until(async || self.affinity.list(1).await.is_err())
            .await;
    }

    /// Polls until something is so.
    pub(crate) async fn until(&self, so: impl AsyncFn() -> bool) {
        crate::soon(async {
            while !so().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Waits until no request is on its way and nothing is reserved.
    pub(crate) async fn until_nothing_is_left(&self) {
        self.until(async || {
            let targets = self.admin("targets").await;
            let targets = targets["targets"].as_array().unwrap();
            let idle = targets.iter().all(|it| it["pending_tokens"] == 0);
            idle && self.gauge("rankway_target_inflight") == 0.0
        })
        .await;
    }

    /// The value of one line of the metrics' text, such as `name{label="value"}`.
    pub(crate) async fn metric(&self, line: &str) -> Option<f64> {
        let metrics = self.client.get("/metrics").await;
        let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
        let value = metrics.lines().find_map(|it| it.strip_prefix(line))?;
        Some(value.trim().parse().unwrap())
    }

    /// Waits until a metric has a value.
    pub(crate) async fn until_metric(&self, line: &str, value: f64) {
        self.until(async || self.metric(line).await == Some(value))
            .await;
    }

    /// The sum over a metric's labels.
    pub(crate) fn gauge(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|it| it.name() == name);
        let metrics = family.into_iter().flat_map(|it| it.get_metric());
        metrics
            .map(|it| {
                let observed = it.get_histogram().get_sample_sum();
                it.get_gauge().get_value() + it.get_counter().get_value() + observed
            })
            .sum()
    }
}

async fn serve_admin(handle: &Handle) -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::to(listener.local_addr().unwrap());
    let routes = handle.admin_routes();
    #[expect(
        clippy::disallowed_methods,
        reason = "it ends with the runtime of its test"
    )]
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    client
}
