//! The service: one watcher per worker, and the way to all of them.

use std::sync::Arc;

use bus::Bus;
use contracts::rpc::Dispatch;
use domain::WorkerId;
use service_kit::{CancellationToken, Context};
use tokio::task::JoinSet;

use crate::client::EngineClient;
use crate::config::{Config, ConfigError, WorkerConfig};
use crate::dispatch::EngineDispatch;
use crate::metrics::Metrics;
use crate::roster::Roster;
use crate::watcher::Watcher;

/// Speaks to the engines.
pub struct WorkerAdapter {
    workers: Vec<(WorkerId, WorkerConfig)>,
    bus: Arc<dyn Bus>,
    context: Context,
    client: EngineClient,
    roster: Roster,
    metrics: Metrics,
}

/// Why the adapter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings make no sense together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another service has registered the same metrics.
    #[error("register metrics")]
    Metrics(#[from] prometheus::Error),
}

impl WorkerAdapter {
    /// Checks the settings. Nothing is asked of an engine before [`WorkerAdapter::run`].
    pub fn new(config: Config, bus: Arc<dyn Bus>, context: Context) -> Result<Self, StartError> {
        let workers = config.named()?;
        Ok(Self {
            roster: Roster::expecting(workers.iter().map(|(id, _)| id.clone())),
            workers,
            metrics: Metrics::new(&context.registry)?,
            bus,
            context,
            client: EngineClient::new(),
        })
    }

    /// The way to the engines. Calls wait until their worker has been asked once, and fail with `UnknownWorker`
    /// while it is not found.
    pub fn dispatch(&self) -> Arc<dyn Dispatch> {
        Arc::new(EngineDispatch {
            roster: self.roster.clone(),
            client: self.client.clone(),
            metrics: self.metrics.clone(),
        })
    }

    /// Watches all workers until `shutdown`, then takes them out of the fleet.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let component = self.context.health.component("engines");
        if self.workers.is_empty() {
            component.waiting("no worker is configured: set `workers`");
        }
        let mut watchers = JoinSet::new();
        for (id, config) in self.workers {
            let watcher = Watcher {
                component: component.clone(),
                id,
                config,
                client: self.client.clone(),
                roster: self.roster.clone(),
                bus: self.bus.clone(),
                clock: self.context.clock,
                metrics: self.metrics.clone(),
            };
            watchers.spawn(watcher.run(shutdown.clone()));
        }
        while let Some(ended) = watchers.join_next().await {
            ended?;
        }
        shutdown.cancelled().await;
        Ok(())
    }
}
