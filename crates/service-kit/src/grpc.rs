//! The listener for calls between services: gRPC with health and reflection, and an end that breaks nothing off.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use contracts::grpc::{Credentials, DESCRIPTORS, Services, server};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::{CancellationToken, Context, Health, listen};

/// The health service, by its name.
const HEALTH: &str = tonic_health::pb::health_server::SERVICE_NAME;
/// How soon a change of readiness shows.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Where calls from other processes are taken, and by whom they may be made.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcSettings {
    /// The address. Port 0 is a free one each time.
    pub listen: SocketAddr,
    /// Under which `host:port` others reach it, where that is not the same.
    pub advertise: Option<String>,
    /// Certificates. With them each side of a connection has to show one; without them nobody does.
    pub tls: Option<GrpcTls>,
    /// Take calls from other hosts without certificates: anybody who reaches the address may do anything.
    pub insecure: bool,
}

/// Files, as PEM.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GrpcTls {
    /// The authority that has signed the certificates of all services.
    pub ca: PathBuf,
    /// This process's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The name that all services' certificates bear; the host of each address where none is given.
    pub name: Option<String>,
}

/// Settings with which no calls can be taken or made.
#[derive(Debug, thiserror::Error)]
pub enum InvalidGrpc {
    /// Strangers would be let in.
    #[error(
        "grpc.listen is not a loopback address: set grpc.tls, or grpc.insecure = true where everybody who can reach \
         it is trusted"
    )]
    Open,
    /// Others are not told where to call.
    #[error(
        "grpc.listen is every address: set grpc.advertise to the host:port by which others reach this one"
    )]
    Nowhere,
    /// A certificate or key cannot be read.
    #[error("read {key} from {path}")]
    File {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

impl Default for GrpcSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            tls: None,
            insecure: false,
        }
    }
}

impl GrpcSettings {
    /// Refuses what would let strangers in, or others not find the way.
    pub fn check(&self) -> Result<(), InvalidGrpc> {
        let ip = self.listen.ip();
        if !ip.is_loopback() && self.tls.is_none() && !self.insecure {
            return Err(InvalidGrpc::Open);
        }
        if ip.is_unspecified() && self.advertise.is_none() {
            return Err(InvalidGrpc::Nowhere);
        }
        Ok(())
    }

    /// Who this process is to its peers, whether they call or are called.
    pub fn credentials(&self) -> Result<Option<Credentials>, InvalidGrpc> {
        let Some(tls) = &self.tls else {
            return Ok(None);
        };
        let read = |key, path: &Path| {
            fs::read_to_string(path).map_err(|source| InvalidGrpc::File {
                key,
                path: path.to_owned(),
                source,
            })
        };
        Ok(Some(Credentials {
            ca: read("grpc.tls.ca", &tls.ca)?,
            certificate: read("grpc.tls.certificate", &tls.certificate)?,
            key: read("grpc.tls.key", &tls.key)?,
            name: tls.name.clone(),
        }))
    }
}

/// A bound listener, that is not serving yet.
pub struct GrpcListener {
    listener: TcpListener,
    address: String,
    credentials: Option<Credentials>,
}

impl GrpcListener {
    /// Listens as `settings` say.
    pub async fn bind(settings: &GrpcSettings) -> anyhow::Result<Self> {
        settings.check()?;
        let credentials = settings.credentials()?;
        let listener = listen(settings.listen, "grpc.listen").await?;
        let bound = listener.local_addr().context("read the gRPC address")?;
        let advertise = settings.advertise.clone();
        Ok(Self {
            listener,
            address: advertise.unwrap_or_else(|| bound.to_string()),
            credentials,
        })
    }

    /// The `host:port` by which others reach it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Serves until `shutdown`, and then goes on for as long as it takes: it says that it is draining, takes calls
    /// for another second, in which callers learn that, and ends when the last call has. A call of which nobody
    /// knows an end is for the caller of this to break off.
    pub async fn serve(
        self,
        services: Services,
        context: Context,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let (reporter, health) = tonic_health::server::health_reporter();
        let names = services.names().to_vec();
        let described = || {
            let all = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            // What is described beside them is served by other processes.
            let served = names.iter().copied().chain([HEALTH]);
            served.fold(all, |it, name| it.with_service_name(name))
        };
        let reflection = described().build_v1().context("describe the services")?;
        // Python's package and older tools ask under the name that it had before.
        let of_old = described().build_v1alpha();
        let of_old = of_old.context("describe the services")?;
        let mut server = server();
        if let Some(credentials) = &self.credentials {
            let tls = server.tls_config(credentials.server());
            server = tls.context("use grpc.tls")?;
        }
        let routes = services.into_routes();
        let routes = routes.add_service(health).add_service(reflection);
        let routes = routes.add_service(of_old);
        let health = context.health.clone();
        let ended = async move { health.notice(shutdown).await };
        let incoming = TcpIncoming::from(self.listener).with_nodelay(Some(true));
        let serving = server
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, ended);
        tokio::select! {
            served = serving => served.context("serve calls"),
            never = report(reporter, names, context.health) => match never {},
        }
    }
}

/// Tells how the process is, for ever.
async fn report(
    reporter: HealthReporter,
    names: Vec<&'static str>,
    health: Health,
) -> std::convert::Infallible {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = None;
    loop {
        ticks.tick().await;
        let ready = health.missing().is_empty();
        if told == Some(ready) {
            continue;
        }
        told = Some(ready);
        let status = || match ready {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        // The empty name stands for the whole process.
        for name in names.iter().copied().chain([""]) {
            reporter.set_service_status(name, status()).await;
        }
    }
}
