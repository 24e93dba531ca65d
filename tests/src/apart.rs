//! The services as real processes over a real NATS server. Each can be killed, frozen, told to end and started again
//! at the same addresses.

mod daemon;
mod ports;
mod programs;
mod service;

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bus::Bus;
use serde::Deserialize;
use service_kit::{BusSettings, OpenBus};
use tokio::time::{Instant, sleep};
use worker_adapter::WorkerConfig;

use self::ports::Ports;
use self::service::{Addresses, Common};
use crate::client::Http;

pub(crate) use self::programs::Tools;
pub(crate) use self::service::{Kind, Service};

/// How long a process may take to be ready: a busy machine's start.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether routers know the engines.
const POLL: Duration = Duration::from_millis(20);
/// Bytes of a topic, which NATS sets aside: more than any scenario writes.
const TOPIC_BYTES: u64 = 300_000_000;

/// How many processes of each kind there are, besides NATS and the routers.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) tools: Tools,
    pub(crate) ingests: usize,
    pub(crate) indexers: usize,
    pub(crate) affinities: usize,
    /// Each speaks to all engines.
    pub(crate) adapters: usize,
    /// Instead of all these and NATS one process that is all services.
    pub(crate) is_one_process: bool,
}

impl Shape {
    /// One of each.
    pub(crate) const fn single(tools: Tools) -> Self {
        Self {
            tools,
            ingests: 1,
            indexers: 1,
            affinities: 1,
            adapters: 1,
            is_one_process: false,
        }
    }

    /// All services in one process, `rankway up`, without NATS.
    pub(crate) fn one_process(tools: Tools) -> Self {
        Self {
            is_one_process: true,
            ..Self::single(tools)
        }
    }
}

impl Shape {
    /// How many processes of which kind, in the order in which they are started.
    fn kinds(&self, routers: usize) -> Vec<(Kind, usize)> {
        if self.is_one_process {
            return vec![(Kind::Up, 1)];
        }
        vec![
            (Kind::Ingest, self.ingests),
            (Kind::Indexer, self.indexers),
            (Kind::Affinity, self.affinities),
            (Kind::Adapter, self.adapters),
            (Kind::Router, routers),
        ]
    }
}

/// All processes of a world.
pub(crate) struct Apart {
    /// NATS first, then in the order in which they are started.
    pub(crate) services: Vec<Service>,
    settings: BusSettings,
    bus: Option<OpenBus>,
    workers: usize,
    _ports: Ports,
}

#[derive(Deserialize)]
struct KnownWorkers {
    workers: Vec<serde_json::Value>,
}

impl Apart {
    /// What is to be started over `folder`, with so many routers, before these engines.
    pub(crate) async fn new(
        shape: &Shape,
        (routers, router): (usize, &router_api::Config),
        workers: &[WorkerConfig],
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let rankway = programs::rankway().await?;
        let mut ports = Ports::take()?;
        let listen = ports.next()?;
        let settings = BusSettings {
            url: format!("nats://{listen}"),
            topic_bytes: TOPIC_BYTES,
            ..BusSettings::default()
        };
        let logs = shape.tools.logs.as_deref().unwrap_or(folder);
        fs::create_dir_all(logs).context("make a folder for logs")?;
        let common = Common {
            folder,
            logs,
            bus: &settings,
            router,
            workers,
        };
        let mut services = Vec::new();
        if !shape.is_one_process {
            let nats = programs::nats_server(&shape.tools).await?;
            services.push(Service::nats(&nats, listen, ports.next()?, &common));
        }
        for (kind, count) in shape.kinds(routers) {
            for number in 1..=count {
                let at = Addresses {
                    admin: ports.next()?,
                    grpc: ports.next()?,
                    api: ports.next()?,
                };
                services.push(Service::rankway(&rankway, kind, number, &at, &common)?);
            }
        }
        Ok(Self {
            services,
            settings,
            bus: None,
            workers: workers.len(),
            _ports: ports,
        })
    }

    /// Starts all, and waits until they are ready and every router knows every engine.
    pub(crate) async fn start(&mut self, folder: &Path) -> anyhow::Result<()> {
        let (nats, services) = self.services.split_at_mut(1);
        for it in nats {
            it.daemon.start()?;
            it.ready(READY_PATIENCE).await?;
        }
        for it in services.iter_mut() {
            it.daemon.start()?;
        }
        if self.of(Kind::Nats).next().is_some() {
            self.bus = Some(self.connect(folder, "scenarios").await?);
        }
        self.ready(READY_PATIENCE).await
    }

    /// Waits until all are ready and every router knows every engine.
    pub(crate) async fn ready(&mut self, patience: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        for it in &mut self.services {
            it.ready(deadline - Instant::now()).await?;
        }
        let http = Http::default();
        for router in self.services.iter().filter(|it| it.api.is_some()) {
            let url = format!("http://{}/api/v1/workers", router.admin);
            loop {
                let known: KnownWorkers = http.get(&url).await?;
                if known.workers.len() == self.workers {
                    break;
                }
                if deadline < Instant::now() {
                    let (name, known) = (router.name(), known.workers.len());
                    bail!("{name} knows {known} of {} engines", self.workers);
                }
                sleep(POLL).await;
            }
        }
        Ok(())
    }

    /// Those of one kind.
    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = &Service> {
        self.services.iter().filter(move |it| it.kind == kind)
    }

    /// Where routers serve clients.
    pub(crate) fn routers(&self) -> Vec<SocketAddr> {
        self.services.iter().filter_map(|it| it.api).collect()
    }

    /// Another connection to the bus, of this process, to see what the services see.
    pub(crate) async fn connect(&self, folder: &Path, name: &str) -> anyhow::Result<OpenBus> {
        OpenBus::open(&self.settings, folder, name).await
    }

    /// Where NATS takes connections, as `nats://host:port`.
    pub(crate) fn bus_url(&self) -> &str {
        &self.settings.url
    }

    /// The bus, as this process is connected to it.
    pub(crate) fn bus(&self) -> Arc<dyn Bus> {
        let bus = self.bus.as_ref();
        bus.expect("a scenario runs once all is started").bus()
    }

    /// The last words of each.
    pub(crate) fn last_words(&self) -> String {
        let mut said = String::new();
        for it in &self.services {
            // Writing to a text does not fail.
            let _ = write!(said, "{}", it.daemon.last_words());
        }
        said
    }

    /// Kills all.
    pub(crate) async fn close(mut self) -> anyhow::Result<()> {
        if let Some(bus) = self.bus.take() {
            bus.close().await;
        }
        for it in self.services.iter_mut().rev() {
            it.daemon.kill().await?;
        }
        Ok(())
    }
}
