//! One process of a world apart: what it is, what it is told, and where it is found.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use service_kit::{BusSettings, GrpcSettings};
use tokio::time::{Instant, sleep};
use worker_adapter::WorkerConfig;

use super::daemon::Daemon;
use crate::client::Http;

/// How often somebody is looked after who is not ready yet.
const POLL: Duration = Duration::from_millis(20);
/// The secret under which bindings are named, equal for all.
const SECRET: &str = "a-secret-of-this-world";

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Nats,
    Ingest,
    Indexer,
    Affinity,
    Adapter,
    Router,
    /// All but NATS in one.
    Up,
}

impl Kind {
    /// The subcommand of `rankway`, and the first word of an instance's name.
    const fn name(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Ingest => "ingest",
            Self::Indexer => "indexer",
            Self::Affinity => "affinity",
            Self::Adapter => "adapter",
            Self::Router => "router",
            Self::Up => "up",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A process, always at the same addresses, with the same name and over the same folder.
pub(crate) struct Service {
    pub(crate) kind: Kind,
    pub(crate) daemon: Daemon,
    /// Where it says how it is; of NATS its monitor.
    pub(crate) admin: SocketAddr,
    /// Where clients find it: routers only.
    pub(crate) api: Option<SocketAddr>,
    http: Http,
}

/// The settings of a service, as its file has them.
#[derive(Clone, Serialize)]
pub(super) struct Settings {
    pub(super) instance: String,
    pub(super) data_dir: PathBuf,
    pub(super) workers: Vec<WorkerConfig>,
    pub(super) router: router_api::Config,
    admin: Admin,
    affinity: Affinity,
    bus: BusSettings,
    pub(super) grpc: GrpcSettings,
}

#[derive(Clone, Serialize)]
struct Admin {
    listen: SocketAddr,
}

#[derive(Clone, Serialize)]
struct Affinity {
    secret: &'static str,
}

/// What all services of a world are told alike.
pub(super) struct Common<'a> {
    /// Files of the processes.
    pub(super) folder: &'a Path,
    /// Their logs.
    pub(super) logs: &'a Path,
    pub(super) bus: &'a BusSettings,
    pub(super) router: &'a router_api::Config,
    pub(super) workers: &'a [WorkerConfig],
}

/// Where one process listens.
pub(super) struct Addresses {
    pub(super) admin: SocketAddr,
    pub(super) grpc: SocketAddr,
    pub(super) api: SocketAddr,
}

impl Service {
    /// A NATS server with JetStream, for clients at `listen`.
    pub(super) fn nats(
        program: &Path,
        listen: SocketAddr,
        admin: SocketAddr,
        common: &Common<'_>,
    ) -> Self {
        let mut arguments: Vec<OsString> = ["-a", "127.0.0.1", "-js", "-sd"].map(Into::into).into();
        arguments.push(common.folder.join("nats").into());
        for (flag, address) in [("-p", listen), ("-m", admin)] {
            arguments.extend([flag.into(), address.port().to_string().into()]);
        }
        let name = Kind::Nats.name().to_owned();
        let log = common.log(&name);
        Self {
            kind: Kind::Nats,
            daemon: Daemon::new(name, program, arguments, log),
            admin,
            api: None,
            http: Http::default(),
        }
    }

    /// The `number`-th service of its kind.
    pub(super) fn rankway(
        program: &Path,
        kind: Kind,
        number: usize,
        at: &Addresses,
        common: &Common<'_>,
    ) -> anyhow::Result<Self> {
        let name = format!("{kind}-{number}");
        let settings = Settings {
            instance: name.clone(),
            data_dir: common.folder.join(&name),
            workers: match kind {
                Kind::Adapter | Kind::Up => common.workers.to_vec(),
                _ => Vec::new(),
            },
            router: router_api::Config {
                listen: at.api,
                ..common.router.clone()
            },
            admin: Admin { listen: at.admin },
            affinity: Affinity { secret: SECRET },
            bus: match kind {
                Kind::Up => BusSettings::default(),
                _ => common.bus.clone(),
            },
            grpc: GrpcSettings {
                listen: at.grpc,
                ..GrpcSettings::default()
            },
        };
        let file = common.folder.join(format!("{name}.toml"));
        let text = toml::to_string(&settings).context("write settings")?;
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        let arguments = vec![kind.name().into(), "--config".into(), file.into()];
        let log = common.log(&name);
        Ok(Self {
            kind,
            daemon: Daemon::new(name, program, arguments, log),
            admin: at.admin,
            api: matches!(kind, Kind::Router | Kind::Up).then_some(at.api),
            http: Http::default(),
        })
    }

    /// Such as `router-1`.
    pub(crate) fn name(&self) -> &str {
        self.daemon.name()
    }

    /// Where it says whether it is ready.
    pub(crate) fn ready_url(&self) -> String {
        let page = match self.kind {
            Kind::Nats => "healthz",
            _ => "readyz",
        };
        format!("http://{}/{page}", self.admin)
    }

    /// Whether it says so.
    pub(crate) async fn is_ready(&self) -> bool {
        self.readiness().await.is_ok()
    }

    /// Waits until it says that it is ready; after `patience`, or where it has ended, an error with its last words.
    pub(crate) async fn ready(&mut self, patience: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let Err(why) = self.readiness().await else {
                return Ok(());
            };
            let name = self.name().to_owned();
            ensure!(self.daemon.runs()?, "{name} has ended by itself");
            ensure!(
                Instant::now() < deadline,
                "{name} is not ready after {patience:?}: {why:#}"
            );
            sleep(POLL).await;
        }
    }

    async fn readiness(&self) -> anyhow::Result<()> {
        self.http.get_soon(&self.ready_url()).await.map(drop)
    }
}

impl Common<'_> {
    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }
}
