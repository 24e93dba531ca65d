//! The world of a scenario: fake engines over real sockets in this process, and the services before them, here too or
//! as processes of their own.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bus::Bus;
use domain::WorkerId;
use engine_sim::EngineSim;
use rankway::suite::{Suite, SuiteConfig};
use serde::{Deserialize, Serialize};
use service_kit::{CancellationToken, Ended, Process};
use worker_adapter::{EngineUrl, WorkerConfig};

use crate::apart::{Apart, Shape};
use crate::client::Http;

/// The model's name at the engines.
pub(crate) const MODEL: &str = "scenario-model";
/// How long the services may take to find the engines and be ready: a busy machine's start.
const READY_PATIENCE: Duration = Duration::from_secs(30);

/// Somebody ended the scenario early.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// What a world consists of.
pub(crate) struct Plan {
    /// How many engines, named `w1`, `w2`, ...
    pub(crate) workers: u32,
    /// Each of them: where it listens, its model's name and its seed are filled in.
    pub(crate) engine: engine_sim::Config,
    /// How many router replicas, each with a listener and a mind of its own.
    pub(crate) routers: usize,
    /// Each of them: where it listens is filled in.
    pub(crate) router: router_api::Config,
    /// What the replicas know of each other.
    pub(crate) tables: Tables,
    /// What the engines' answers, and whatever the scenario draws, are derived from.
    pub(crate) seed: u64,
    /// Where the services are.
    pub(crate) form: Form,
}

/// Where the services of a world are.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// In this process, over the embedded bus.
    Together,
    /// Processes of their own, over NATS.
    Apart(Shape),
}

/// What router replicas have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// One bus, one index, one affinity store.
    Shared,
    /// One bus and one affinity store; the engines announce nothing, so that no index knows what they hold.
    SharedUnannounced,
    /// Nothing: each replica has a bus and bindings of its own, and no index, as the engines announce nothing.
    Private,
}

/// A running world.
pub(crate) struct World {
    engines: Engines,
    services: Services,
    http: Http,
}

/// The engines of a world, by number.
#[derive(Default)]
struct Engines {
    addresses: Vec<SocketAddr>,
    /// Each ends one.
    stops: Vec<CancellationToken>,
}

enum Services {
    Together(Vec<Suite>),
    Apart(Box<Apart>),
}

/// A request as the engine that served it says, once it has been served to its end.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Served {
    /// Its `x-request-id`.
    pub(crate) request_id: Option<String>,
    /// The rank that ran it.
    pub(crate) dp_rank: u32,
    /// The rank that was asked for on the wire.
    pub(crate) asked_dp_rank: Option<u32>,
    pub(crate) prompt_tokens: u64,
    /// Of those, tokens taken from the rank's cache.
    pub(crate) cached_tokens: u64,
}

/// What routers did out of the ordinary: the reasons where something does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Noticed {
    /// Conversations bound elsewhere.
    pub(crate) moved: f64,
    /// Turns sent elsewhere for once.
    pub(crate) excursions: f64,
    /// Decisions that an answer of a service was missing for, as on a busy machine.
    pub(crate) degraded: f64,
}

#[derive(Deserialize)]
struct ServedAnswer {
    requests: Vec<Served>,
}

impl Plan {
    /// Starts everything, waits until it is ready, lets `scenario` run in it, and ends everything. A signal ends
    /// the scenario with [`Interrupted`].
    pub(crate) async fn run<T>(
        self,
        scenario: impl AsyncFnOnce(&mut World) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let folder = tempfile::tempdir().context("make a temporary data folder")?;
        let process = Process::default();
        let engines = self.start_engines(&process).await?;
        let measured = match &self.form {
            Form::Together => {
                self.run_together(process, engines, folder.path(), scenario)
                    .await
            }
            Form::Apart(shape) => {
                let running = self.run_apart(shape, engines, folder.path(), scenario);
                process.run_until(running).await
            }
        };
        match measured? {
            Ended::Done(measured) => Ok(measured),
            Ended::Signal => Err(Interrupted.into()),
        }
    }

    async fn run_together<T>(
        &self,
        process: Process,
        engines: Engines,
        folder: &Path,
        scenario: impl AsyncFnOnce(&mut World) -> anyhow::Result<T>,
    ) -> anyhow::Result<Ended<T>> {
        let mut suites = Vec::new();
        for (number, routers) in self.suites().into_iter().enumerate() {
            let config = SuiteConfig {
                data_dir: folder.join(format!("suite-{number}")),
                adapter: worker_adapter::Config {
                    workers: workers(&engines.addresses)?,
                },
                affinity_secret: None,
                routers,
            };
            suites.push(Suite::start(config, &process).await?);
        }
        let mut world = World::new(engines, Services::Together(suites));
        let measured = process
            .run_until(async {
                for suite in world.suites() {
                    suite.ready(READY_PATIENCE).await?;
                }
                scenario(&mut world).await
            })
            .await;
        if let Services::Together(suites) = world.services {
            for suite in suites {
                suite.close().await;
            }
        }
        measured
    }

    /// Whatever ends it early, and drops this, ends the processes too.
    async fn run_apart<T>(
        &self,
        shape: &Shape,
        engines: Engines,
        folder: &Path,
        scenario: impl AsyncFnOnce(&mut World) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if self.tables == Tables::Private {
            bail!("routers that are processes of their own share their tables");
        }
        let routers = (self.routers, &self.router);
        let apart = Apart::new(shape, routers, &workers(&engines.addresses)?, folder).await?;
        let mut world = World::new(engines, Services::Apart(Box::new(apart)));
        let measured = match world.apart()?.start(folder).await {
            Ok(()) => scenario(&mut world).await,
            Err(error) => Err(error),
        };
        let Services::Apart(apart) = world.services else {
            unreachable!("it was made so above");
        };
        if measured.is_err() {
            // With standard error gone there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "{}", apart.last_words());
        }
        apart.close().await?;
        measured
    }

    async fn start_engines(&self, process: &Process) -> anyhow::Result<Engines> {
        let port = (self.tables == Tables::Shared).then_some(0);
        let mut engines = Engines::default();
        for number in 0..self.workers {
            let engine = EngineSim::bind(engine_sim::Config {
                listen: ([127, 0, 0, 1], 0).into(),
                model: MODEL.to_owned(),
                kv_events_port: port,
                replay_port: port,
                seed: self.seed ^ u64::from(number),
                ..self.engine.clone()
            })
            .await?;
            let (stop, shutdown) = (process.shutdown().child_token(), process.shutdown());
            engines.addresses.push(engine.http_addr());
            engines.stops.push(stop.clone());
            process.spawn("fake engine", async move {
                engine.run(stop).await?;
                // A world goes on without one that was stopped.
                shutdown.cancelled().await;
                Ok(())
            });
        }
        Ok(engines)
    }

    /// The routers of each suite of services.
    fn suites(&self) -> Vec<Vec<router_api::Config>> {
        let router = router_api::Config {
            listen: ([127, 0, 0, 1], 0).into(),
            ..self.router.clone()
        };
        match self.tables {
            Tables::Shared | Tables::SharedUnannounced => vec![vec![router; self.routers]],
            Tables::Private => vec![vec![router]; self.routers],
        }
    }
}

fn workers(engines: &[SocketAddr]) -> anyhow::Result<Vec<WorkerConfig>> {
    let worker = |(number, address): (usize, &SocketAddr)| {
        let url: EngineUrl = format!("http://{address}").parse()?;
        Ok(WorkerConfig {
            id: Some(WorkerId::new(&format!("w{}", number + 1))?),
            ..WorkerConfig::at(url)
        })
    };
    engines.iter().enumerate().map(worker).collect()
}

impl World {
    fn new(engines: Engines, services: Services) -> Self {
        Self {
            engines,
            services,
            http: Http::default(),
        }
    }

    fn suites(&self) -> &[Suite] {
        match &self.services {
            Services::Together(suites) => suites,
            Services::Apart(_) => &[],
        }
    }

    /// The services, where they are in this process.
    pub(crate) fn suite(&self) -> Option<&Suite> {
        self.suites().first()
    }

    /// The processes, where the services are such.
    pub(crate) fn processes(&self) -> Option<&Apart> {
        match &self.services {
            Services::Together(_) => None,
            Services::Apart(apart) => Some(apart),
        }
    }

    /// The same, to do something to them.
    pub(crate) fn apart(&mut self) -> anyhow::Result<&mut Apart> {
        match &mut self.services {
            Services::Together(_) => bail!("the services are no processes of their own"),
            Services::Apart(apart) => Ok(apart),
        }
    }

    /// Where the engines are.
    pub(crate) fn engines(&self) -> &[SocketAddr] {
        &self.engines.addresses
    }

    /// Ends an engine, by its number: what it still serves breaks off after two seconds.
    pub(crate) fn stop_engine(&self, number: usize) {
        self.engines.stops[number].cancel();
    }

    /// Where the router replicas listen.
    pub(crate) fn routers(&self) -> Vec<SocketAddr> {
        match &self.services {
            Services::Apart(apart) => apart.routers(),
            Services::Together(suites) => {
                let routers = suites.iter().flat_map(|it| &it.routers);
                routers.map(|it| it.address()).collect()
            }
        }
    }

    /// The bus of the first replica, which is that of all where tables are shared.
    pub(crate) fn bus(&self) -> Arc<dyn Bus> {
        match &self.services {
            Services::Apart(apart) => apart.bus(),
            Services::Together(suites) => suites[0].bus(),
        }
    }

    /// By how much each change of a table of the bus has a higher revision than the one before.
    pub(crate) const fn revision_step(&self) -> u64 {
        match &self.services {
            Services::Together(_) => 1,
            Services::Apart(_) => 2,
        }
    }

    /// What all router replicas have counted under a metric's name, over all its labels.
    pub(crate) async fn counted(&self, metric: &str) -> anyhow::Result<f64> {
        let mut counted = 0.0;
        for router in self.routers() {
            let text = self
                .http
                .get_text(&format!("http://{router}/metrics"))
                .await?;
            counted += sum_of(&text, metric);
        }
        Ok(counted)
    }

    /// What the routers did out of the ordinary.
    pub(crate) async fn noticed(&self) -> anyhow::Result<Noticed> {
        Ok(Noticed {
            moved: self.counted("rankway_rebinds_total").await?,
            excursions: self.counted("rankway_excursions_total").await?,
            degraded: self.counted("rankway_degraded_decisions_total").await?,
        })
    }

    /// The last 65,536 requests that each engine has served to their end, by the engine's number.
    pub(crate) async fn served(&self) -> anyhow::Result<Vec<Vec<Served>>> {
        let mut served = Vec::new();
        for engine in self.engines() {
            let url = format!("http://{engine}/debug/requests");
            let answer: ServedAnswer = self.http.get(&url).await?;
            served.push(answer.requests);
        }
        Ok(served)
    }
}

/// The sum of a metric's values in a text of Prometheus.
pub(crate) fn sum_of(text: &str, metric: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(metric)?;
        let labelled = rest.starts_with(['{', ' ']);
        let (_, value) = rest.rsplit_once(' ').filter(|_| labelled)?;
        value.parse::<f64>().ok()
    };
    text.lines().filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::sum_of;

    #[test]
    fn a_metric_is_summed_over_its_labels() {
        let text = "# HELP a of all\na{b=\"c d\"} 2\na{b=\"e\"} 3.5\na 1\na_total 9\n";

        assert!((sum_of(text, "a") - 6.5).abs() < 1e-9);
        assert!((sum_of(text, "a_total") - 9.0).abs() < 1e-9);
    }
}
