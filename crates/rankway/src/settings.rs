//! The settings of `up`: one structure from file, environment and flags.

mod start;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use affinity::Owner;
use clap::CommandFactory as _;
use contracts::rpc::{InvalidShard, Shard};
use domain::InstanceId;
use serde::{Deserialize, Serialize};
use service_kit::settings::{ENVIRONMENT_PREFIX, Variables};
use service_kit::{BusSettings, GrpcSettings};
use worker_adapter::{EngineUrl, WorkerConfig};

use self::start::Written;
use crate::cli::{Cli, ENGINE_WAIT_SECONDS, SettingsArgs};
use crate::failure::Failure;

/// Everything `up` can be told.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// The name of a service that is a process of its own, different from those of all others; one is made where
    /// none is given.
    pub(crate) instance: Option<String>,
    /// Folder for the log, the index and the bindings.
    pub(crate) data_dir: PathBuf,
    /// Engines by their URL alone; whatever else there is to know is asked of them.
    pub(crate) worker_urls: Vec<EngineUrl>,
    /// Engines of which more has to be said.
    pub(crate) workers: Vec<WorkerConfig>,
    /// How long the first engine may take to answer at the start, in seconds.
    pub(crate) engine_wait_seconds: u64,
    /// The OpenAI-compatible API and its decisions.
    pub(crate) router: router_api::Config,
    /// The admin API.
    pub(crate) admin: Admin,
    /// Bindings.
    pub(crate) affinity: Affinity,
    /// The index.
    pub(crate) indexer: IndexShard,
    /// What is asynchronous between the services.
    pub(crate) bus: BusSettings,
    /// Where a service that is a process of its own takes calls.
    pub(crate) grpc: GrpcSettings,
    /// What is good, and most likely not what was meant: to be said wherever the settings are used.
    #[serde(skip)]
    pub(crate) doubts: Vec<String>,
}

/// The index.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct IndexShard {
    /// Which share of the log an indexer follows, as `INDEX/COUNT`.
    pub(crate) shard: String,
}

impl Default for IndexShard {
    fn default() -> Self {
        Self {
            shard: Shard::WHOLE.to_string(),
        }
    }
}

impl IndexShard {
    pub(crate) fn read(&self) -> Result<Shard, Failure> {
        let wrong = |why: InvalidShard| Failure::wrong_use(format!("indexer.shard: {why}"));
        self.shard.parse().map_err(wrong)
    }
}

/// The admin API.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Admin {
    /// Its address.
    pub(crate) listen: SocketAddr,
    /// The bearer token it asks for; required where the address is not a loopback one.
    pub(crate) token: Option<String>,
}

/// Bindings.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Affinity {
    /// The secret under which binding keys are hashed; without it one is made and kept in the data folder.
    pub(crate) secret: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            instance: None,
            data_dir: PathBuf::from("rankway-data"),
            worker_urls: Vec::new(),
            workers: Vec::new(),
            engine_wait_seconds: 10,
            router: router_api::Config::default(),
            admin: Admin::default(),
            affinity: Affinity::default(),
            indexer: IndexShard::default(),
            bus: BusSettings::default(),
            grpc: GrpcSettings::default(),
            doubts: Vec::new(),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8090)),
            token: None,
        }
    }
}

/// What flags say of a service that is a process of its own.
#[derive(Default)]
pub(crate) struct Own {
    /// Its name.
    pub(crate) instance: Option<InstanceId>,
    /// Where it takes calls.
    pub(crate) grpc_listen: Option<SocketAddr>,
    /// What an indexer follows.
    pub(crate) shard: Option<Shard>,
}

/// What flags say, in the shape of the settings.
#[derive(Serialize)]
struct Flags<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dir: Option<&'a PathBuf>,
    #[serde(skip_serializing_if = "<[EngineUrl]>::is_empty")]
    worker_urls: &'a [EngineUrl],
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_wait_seconds: Option<u64>,
    router: RouterFlags,
    admin: AdminFlags<'a>,
    bus: BusFlags<'a>,
    grpc: GrpcFlags,
    indexer: IndexerFlags,
}

#[derive(Serialize)]
struct RouterFlags {
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank_source: Option<&'static str>,
}

#[derive(Serialize)]
struct AdminFlags<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
}

#[derive(Serialize)]
struct BusFlags<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
}

#[derive(Serialize)]
struct GrpcFlags {
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<SocketAddr>,
}

#[derive(Serialize)]
struct IndexerFlags {
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<String>,
}

impl<'a> Flags<'a> {
    fn of(args: &'a SettingsArgs, own: &'a Own) -> Self {
        Self {
            instance: own.instance.as_ref().map(InstanceId::as_str),
            data_dir: args.data_dir.as_ref(),
            worker_urls: &args.worker_urls,
            engine_wait_seconds: args.engine_wait_seconds,
            router: RouterFlags {
                listen: args.listen,
                policy: args.policy.map(|it| it.to_string()),
                rank_source: args.rank_source.or(args.dyn_rank_source).map(Owner::name),
            },
            admin: AdminFlags {
                listen: args.admin_listen,
                token: args.admin_token.as_deref(),
            },
            bus: BusFlags {
                url: args.bus_url.as_deref(),
            },
            grpc: GrpcFlags {
                listen: own.grpc_listen,
            },
            indexer: IndexerFlags {
                shard: own.shard.map(|it| it.to_string()),
            },
        }
    }
}

/// The variables, without their prefix, that stand for flags of any command: they are read with the flags.
fn flag_variables(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|it| {
        let name = it.get_env()?.to_str()?;
        name.strip_prefix(ENVIRONMENT_PREFIX).map(str::to_owned)
    });
    let others = command.get_subcommands().flat_map(flag_variables);
    own.chain(others).collect()
}

/// Variables of flags, and those of the settings that they stand for.
const SAME_VARIABLES: &[(&str, &str)] = &[
    ("RANKWAY_POLICY", "RANKWAY_ROUTER__POLICY"),
    ("RANKWAY_RANK_SOURCE", "RANKWAY_ROUTER__RANK_SOURCE"),
    ("RANKWAY_LISTEN", "RANKWAY_ROUTER__LISTEN"),
    ("RANKWAY_ADMIN_LISTEN", "RANKWAY_ADMIN__LISTEN"),
    ("RANKWAY_ADMIN_TOKEN", "RANKWAY_ADMIN__TOKEN"),
    ("RANKWAY_BUS_URL", "RANKWAY_BUS__URL"),
    ("RANKWAY_GRPC_LISTEN", "RANKWAY_GRPC__LISTEN"),
    ("RANKWAY_SHARD", "RANKWAY_INDEXER__SHARD"),
];
/// Streams that go on for longer when the process is told to end are broken off: a day.
const LONGEST_DRAIN_SECONDS: u64 = 86_400;
/// Settings whose variables are text even where they read as numbers.
const TEXTS: &[&str] = &[
    "admin.token",
    "affinity.secret",
    "router.default_tenant",
    "router.salt_secret",
    "bus.user",
    "bus.password",
    "bus.token",
];

impl Settings {
    /// Reads and checks the settings, which may name no engine yet.
    pub(crate) fn read(args: &SettingsArgs, own: Own) -> Result<Self, Failure> {
        let flags = Flags::of(args, &own);
        let of_flags = flag_variables(&Cli::command());
        let of_flags: Vec<&str> = of_flags.iter().map(String::as_str).collect();
        let variables = Variables {
            flags: &of_flags,
            same: SAME_VARIABLES,
            texts: TEXTS,
        };
        let file = args.config.as_deref();
        let mut settings: Self =
            service_kit::settings::load(file, variables, &flags).map_err(Failure::wrong_use)?;
        settings.check()?;
        let written: Written =
            service_kit::settings::load(file, variables, &flags).map_err(Failure::wrong_use)?;
        settings.doubts = written.doubts();
        Ok(settings)
    }

    fn check(&self) -> Result<(), Failure> {
        let mut urls = BTreeSet::new();
        if let Some(url) = self.worker_urls.iter().find(|it| !urls.insert(*it)) {
            let why = format!("{url} is given twice in worker_urls (--worker-urls)");
            return Err(Failure::wrong_use(why));
        }
        if clash(self.router.listen, self.admin.listen) {
            let why = format!(
                "router.listen and admin.listen are one address, {}: change one (--listen, --admin-listen)",
                self.admin.listen
            );
            return Err(Failure::wrong_use(why));
        }
        if !self.admin.listen.ip().is_loopback() && self.admin.token.is_none() {
            let why =
                "admin.listen is not a loopback address: set admin.token (RANKWAY_ADMIN_TOKEN) too";
            return Err(Failure::wrong_use(why));
        }
        let secrets = [
            ("admin.token", &self.admin.token),
            ("affinity.secret", &self.affinity.secret),
        ];
        if let Some((key, _)) = secrets.iter().find(|it| it.1.as_deref() == Some("")) {
            let why = format!("{key} is empty: set one or leave it out");
            return Err(Failure::wrong_use(why));
        }
        if self.data_dir.as_os_str().is_empty() {
            let why = "data_dir is empty: name a folder (--data-dir)";
            return Err(Failure::wrong_use(why));
        }
        self.check_data_dir()?;
        if self.router.max_body == 0 {
            let why = "router.max_body = 0 lets no request in: say how many bytes a body may have";
            return Err(Failure::wrong_use(why));
        }
        self.router.check().map_err(Failure::wrong_use)?;
        if LONGEST_DRAIN_SECONDS < self.router.drain_seconds {
            let why = format!("router.drain_seconds must be at most {LONGEST_DRAIN_SECONDS}");
            return Err(Failure::wrong_use(why));
        }
        if !ENGINE_WAIT_SECONDS.contains(&self.engine_wait_seconds) {
            let why = format!(
                "engine_wait_seconds must be between {} and {}",
                ENGINE_WAIT_SECONDS.start(),
                ENGINE_WAIT_SECONDS.end()
            );
            return Err(Failure::wrong_use(why));
        }
        self.indexer.read()?;
        self.bus.check().map_err(Failure::wrong_use)?;
        self.grpc.check().map_err(Failure::wrong_use)?;
        if let Some(Err(why)) = self.instance.as_deref().map(InstanceId::new) {
            return Err(Failure::wrong_use(format!("instance: {why}")));
        }
        let named = self.adapter().named();
        named.map(|_| ()).map_err(Failure::wrong_use)
    }

    /// Whether the data folder can be one: there it can be written, else made.
    fn check_data_dir(&self) -> Result<(), Failure> {
        let shown = self.data_dir.display();
        let refused = |why: String| {
            Err(Failure::wrong_use(format!(
                "data_dir {shown} {why}: name a folder that can be written (--data-dir)"
            )))
        };
        let mut above = self.data_dir.ancestors();
        // Of a relative one the last is the empty path, which is nowhere.
        let there = above.find(|it| it.exists()).unwrap_or(Path::new("."));
        if !there.is_dir() {
            return refused(format!(
                "cannot be a folder, because {} is a file",
                there.display()
            ));
        }
        match tempfile::tempfile_in(there) {
            Ok(_) => Ok(()),
            Err(error) => refused(format!("cannot be written ({error})")),
        }
    }

    /// The same, fit to be shown: secrets that are set read `***`.
    pub(crate) fn without_secrets(mut self) -> Self {
        for secret in [&mut self.admin.token, &mut self.affinity.secret] {
            *secret = secret.as_ref().map(|_| "***".to_owned());
        }
        self.bus = self.bus.without_secrets();
        self
    }

    /// The settings of the worker adapter.
    pub(crate) fn adapter(&self) -> worker_adapter::Config {
        let short = self.worker_urls.iter().cloned().map(WorkerConfig::at);
        worker_adapter::Config {
            workers: short.chain(self.workers.iter().cloned()).collect(),
        }
    }
}

/// Whether two listeners cannot be at these addresses together. Port 0 is a free one each time.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let everywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (everywhere || one.ip() == other.ip())
}
