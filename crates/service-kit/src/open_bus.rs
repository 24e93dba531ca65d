//! The choice of bus.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bus::Bus;
use bus_local::{LocalBus, OpenError};
use bus_nats::{ClientCertificate, ConnectError, Login, NatsBus, Tls};
use contracts::topics;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::error_chain;

/// How long the data folder may stay taken, as by a killed process that has not quite gone.
const FOLDER_PATIENCE: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile.
const FOLDER_RETRY: Duration = Duration::from_millis(50);
/// How long no NATS server may be reached at the start: it and the services may be started together.
const NATS_PATIENCE: Duration = Duration::from_secs(20);
/// How often it is tried meanwhile.
const NATS_RETRY: Duration = Duration::from_millis(500);
/// What stands for the bus in a folder.
const LOCAL: &str = "local";

/// Which bus, and how it is reached.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BusSettings {
    /// `local` for one in the data folder, which only one process can use; or the servers of one NATS cluster,
    /// separated by commas: `nats://10.0.0.1:4222`, or `tls://` where nothing may be sent in the clear.
    pub url: String,
    /// The first word of every NATS subject and stream, so that installations can share a cluster.
    pub prefix: String,
    /// The first word of the subjects at which answers come, for users who may subscribe nowhere else.
    pub inbox: String,
    /// On how many servers of a cluster each log and table is kept: 1, 3 or 5.
    pub replicas: usize,
    /// The oldest records of a topic go when it has more bytes than this; NATS sets them aside for each.
    pub topic_bytes: u64,
    /// A NATS user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// A shared NATS token.
    pub token: Option<String>,
    /// The seed of an NKey.
    pub nkey_seed: Option<String>,
    /// A file with a JWT and its seed, as `nsc` writes it.
    pub credentials: Option<PathBuf>,
    /// How NATS servers and this process prove who they are.
    pub tls: NatsTls,
}

/// How NATS servers and this process prove who they are.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatsTls {
    /// Whether a server without TLS is refused.
    pub required: bool,
    /// A file of certificates (PEM) to trust besides those of the system.
    pub ca: Option<PathBuf>,
    /// This process's own certificate (PEM); with its key.
    pub certificate: Option<PathBuf>,
    /// The key of the certificate (PEM).
    pub key: Option<PathBuf>,
}

/// Settings that name no bus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBus {
    /// The URL is none.
    #[error("bus.url {0:?} names no bus: write local, or nats://host:port")]
    Url(String),
    /// There is more than one way to log in.
    #[error("set only one of bus.user, bus.token, bus.nkey_seed and bus.credentials")]
    Logins,
    /// Two settings that belong together.
    #[error("set both {0} and {1}, or neither")]
    Half(&'static str, &'static str),
}

impl Default for BusSettings {
    fn default() -> Self {
        let nats = bus_nats::Settings::default();
        Self {
            url: LOCAL.to_owned(),
            prefix: nats.prefix,
            inbox: nats.inbox,
            replicas: nats.replicas,
            topic_bytes: nats.topic_bytes,
            user: None,
            password: None,
            token: None,
            nkey_seed: None,
            credentials: None,
            tls: NatsTls::default(),
        }
    }
}

impl BusSettings {
    /// Whether it is the one in the data folder.
    pub fn is_local(&self) -> bool {
        self.url == LOCAL
    }

    /// Refuses what names no bus.
    pub fn check(&self) -> Result<(), InvalidBus> {
        if !self.is_local() {
            self.servers()?;
        }
        self.login()?;
        self.client_certificate().map(|_| ())
    }

    /// The same, fit to be shown: secrets that are set read `***`.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        for secret in [&mut self.password, &mut self.token, &mut self.nkey_seed] {
            *secret = secret.as_ref().map(|_| "***".to_owned());
        }
        self
    }

    fn servers(&self) -> Result<Vec<String>, InvalidBus> {
        let servers = self.url.split(',').map(|it| it.trim().to_owned());
        let servers: Vec<String> = servers.collect();
        let is_one = |it: &String| it.starts_with("nats://") || it.starts_with("tls://");
        match servers.iter().all(is_one) {
            true => Ok(servers),
            false => Err(InvalidBus::Url(self.url.clone())),
        }
    }

    fn login(&self) -> Result<Login, InvalidBus> {
        let user = match (&self.user, &self.password) {
            (Some(user), Some(password)) => Some(Login::User {
                user: user.clone(),
                password: password.clone(),
            }),
            (None, None) => None,
            _ => return Err(InvalidBus::Half("bus.user", "bus.password")),
        };
        let all = [
            user,
            self.token.clone().map(Login::Token),
            self.nkey_seed.clone().map(Login::NkeySeed),
            self.credentials.clone().map(Login::Credentials),
        ];
        let mut said = all.into_iter().flatten();
        match (said.next(), said.next()) {
            (_, Some(_)) => Err(InvalidBus::Logins),
            (one, None) => Ok(one.unwrap_or_default()),
        }
    }

    fn client_certificate(&self) -> Result<Option<ClientCertificate>, InvalidBus> {
        match (&self.tls.certificate, &self.tls.key) {
            (Some(certificate), Some(key)) => Ok(Some(ClientCertificate {
                certificate: certificate.clone(),
                key: key.clone(),
            })),
            (None, None) => Ok(None),
            _ => Err(InvalidBus::Half("bus.tls.certificate", "bus.tls.key")),
        }
    }
}

/// The bus of this process.
#[derive(Clone)]
pub enum OpenBus {
    /// In a folder.
    Local(Arc<LocalBus>),
    /// At NATS.
    Nats(Arc<NatsBus>),
}

impl OpenBus {
    /// Opens the bus that `settings` name; `folder` is that of a local one, and `name` what a connection is called
    /// in the reports of its servers.
    pub async fn open(settings: &BusSettings, folder: &Path, name: &str) -> anyhow::Result<Self> {
        settings.check()?;
        if settings.is_local() {
            return open_local(folder).await.map(Self::Local);
        }
        let nats = bus_nats::Settings {
            servers: settings.servers()?,
            prefix: settings.prefix.clone(),
            inbox: settings.inbox.clone(),
            name: name.to_owned(),
            login: settings.login()?,
            tls: Tls {
                required: settings.tls.required,
                ca: settings.tls.ca.clone(),
                client: settings.client_certificate()?,
            },
            replicas: settings.replicas,
            topic_bytes: settings.topic_bytes,
            ..bus_nats::Settings::default()
        };
        let bus = connect_nats(nats)
            .await
            .context("open the bus (see --bus-url)")?;
        Ok(Self::Nats(Arc::new(bus)))
    }

    /// The bus as services use it.
    pub fn bus(&self) -> Arc<dyn Bus> {
        match self {
            Self::Local(bus) => bus.clone(),
            Self::Nats(bus) => bus.clone(),
        }
    }

    /// Sends or flushes what is under way, once the services have ended.
    pub async fn close(&self) {
        match self {
            Self::Local(bus) => bus.close().await,
            Self::Nats(bus) => bus.close().await,
        }
    }
}

async fn connect_nats(settings: bus_nats::Settings) -> Result<NatsBus, ConnectError> {
    let deadline = Instant::now() + NATS_PATIENCE;
    let mut told = false;
    loop {
        match NatsBus::connect(settings.clone(), &topics::LAYOUT).await {
            Err(error @ ConnectError::Unreachable { .. }) if Instant::now() < deadline => {
                if !std::mem::replace(&mut told, true) {
                    let why = error_chain(&error);
                    warn!(
                        why,
                        "the bus cannot be reached yet; trying again for {NATS_PATIENCE:?}"
                    );
                }
                sleep(NATS_RETRY).await;
            }
            connected => return connected,
        }
    }
}

async fn open_local(folder: &Path) -> anyhow::Result<Arc<LocalBus>> {
    let deadline = Instant::now() + FOLDER_PATIENCE;
    loop {
        match LocalBus::open(folder, &topics::LAYOUT).await {
            Ok(bus) => return Ok(Arc::new(bus)),
            Err(OpenError::InUse { .. }) if Instant::now() < deadline => sleep(FOLDER_RETRY).await,
            Err(error) => return Err(error).context("open the embedded bus (see --data-dir)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_name_no_bus_are_refused_with_the_key() {
        let check = |settings: BusSettings, expected: &str| {
            let said = settings.check().map_err(|it| it.to_string());
            assert_eq!(said.err().unwrap_or_default(), expected);
        };
        let at = |url: &str| BusSettings {
            url: url.to_owned(),
            ..BusSettings::default()
        };
        check(BusSettings::default(), "");
        check(at("nats://a:4222, tls://b:4222"), "");
        check(
            at("a:4222"),
            "bus.url \"a:4222\" names no bus: write local, or nats://host:port",
        );
        check(
            at("nats://a:4222,"),
            "bus.url \"nats://a:4222,\" names no bus: write local, or nats://host:port",
        );
        let user = Some("u".to_owned());
        check(
            BusSettings {
                user: user.clone(),
                ..at("nats://a:1")
            },
            "set both bus.user and bus.password, or neither",
        );
        let two = BusSettings {
            user: user.clone(),
            password: user.clone(),
            token: user,
            ..at("nats://a:1")
        };
        check(
            two.clone(),
            "set only one of bus.user, bus.token, bus.nkey_seed and bus.credentials",
        );
        let shown = two.without_secrets();
        assert_eq!(shown.password.as_deref(), Some("***"));
        assert_eq!(shown.token.as_deref(), Some("***"));
    }
}
