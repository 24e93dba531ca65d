//! Each service as the user of NATS that `deploy/nats` has for its kind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use bus::{Bus, BusError, Expect, Key, Offset, Partition, Record, Start, Table};
use bytes::Bytes;
use contracts::topics;
use futures::StreamExt as _;
use futures::future::join_all;
use service_kit::{BusSettings, OpenBus};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Duration, sleep, timeout};

use crate::conversation::Conversation;
use crate::fleet::Engine;
use crate::http_client::Client;
use crate::process::{PATIENCE, POLL, Running, free_ports, run};

/// Where to look for servers, separated by spaces; set by `tests/run`.
const SERVERS: &str = "TEST_NATS_SERVERS";
const USERS: [&str; 6] = [
    "operator", "ingest", "indexer", "affinity", "adapter", "router",
];

fn programs() -> Vec<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "tests have no settings")]
    let named = std::env::var(SERVERS).unwrap_or_default();
    let programs: Vec<PathBuf> = named.split_whitespace().map(PathBuf::from).collect();
    match programs.is_empty() {
        true => vec!["nats-server".into()],
        false => programs,
    }
}

fn password(user: &str) -> String {
    format!("password-of-{user}")
}

/// A server with the configuration that is shipped.
struct Server {
    folder: TempDir,
    url: String,
    _server: Child,
}

impl Server {
    async fn start(program: &Path) -> Self {
        let folder = TempDir::new().unwrap();
        let port = free_ports(1);
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/nats/rankway.conf");
        let passwords = USERS.map(|it| {
            let variable = format!("NATS_{}_PASSWORD", it.to_uppercase());
            (variable, password(it))
        });
        let server = Command::new(program)
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-sd"])
            .arg(folder.path().join("nats"))
            .arg("-c")
            .arg(shipped)
            .envs(passwords)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let server =
            server.expect("install nats-server (Debian, Ubuntu: apt-get install nats-server)");
        let listens = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                sleep(POLL).await;
            }
        };
        timeout(PATIENCE, listens).await.unwrap();
        Self {
            folder,
            url: format!("nats://127.0.0.1:{port}"),
            _server: server,
        }
    }

    /// The settings of the process `instance` of a user.
    fn settings(&self, user: &str, instance: &str, more: &str) -> String {
        let path = self.folder.path().join(format!("{instance}.toml"));
        let (url, password) = (&self.url, password(user));
        let inbox = inbox(user);
        let settings = format!(
            "instance = \"{instance}\"\n{more}\n\
             [bus]\nurl = \"{url}\"\nuser = \"{user}\"\npassword = \"{password}\"\ninbox = \"{inbox}\"\n\
             topic_bytes = 20000000\n[affinity]\nsecret = \"0123456789abcdef\"\n"
        );
        fs::write(&path, settings).unwrap();
        path.to_str().unwrap().to_owned()
    }

    async fn service(&self, user: &str, instance: &str, more: &str) -> Service {
        let config = self.settings(user, instance, more);
        let data = self.folder.path().join(instance);
        let args = [
            user,
            "--config",
            &config,
            "--data-dir",
            data.to_str().unwrap(),
            "--admin-listen",
            "127.0.0.1:0",
        ];
        let more: &[&str] = match user {
            "router" => &["--listen", "127.0.0.1:0"],
            _ => &[],
        };
        let mut running = Running::start(&[&args, more].concat());
        let line = running.logs("serving instance=").await;
        let (_, admin) = line.split_once(" admin=").unwrap();
        Service {
            admin: admin.trim().to_owned(),
            running,
        }
    }

    /// The bus as a user has it.
    async fn bus(&self, user: &str) -> Arc<dyn Bus> {
        let settings = BusSettings {
            url: self.url.clone(),
            user: Some(user.to_owned()),
            password: Some(password(user)),
            inbox: inbox(user),
            topic_bytes: 20_000_000,
            ..BusSettings::default()
        };
        let opened = OpenBus::open(&settings, self.folder.path(), user).await;
        opened.unwrap().bus()
    }
}

fn inbox(user: &str) -> String {
    match user {
        "operator" => "_INBOX".to_owned(),
        user => format!("_INBOX_{user}"),
    }
}

struct Service {
    running: Running,
    admin: String,
}

impl Service {
    async fn ready(&self) {
        let url = format!("{}/readyz", self.admin);
        let ready = async {
            while Client::new().get(&url).await.status != 200 {
                sleep(POLL).await;
            }
        };
        let ready = timeout(PATIENCE, ready).await;
        ready.unwrap_or_else(|_| panic!("not ready:\n{}", self.running.output()));
    }

    /// What the server has refused it.
    fn refusals(&self) -> Vec<String> {
        let output = self.running.output();
        let refused = output
            .lines()
            .filter(|it| it.to_lowercase().contains("permissions violation"));
        refused.map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn every_service_does_its_work_as_its_own_user() {
    for program in programs() {
        let server = Server::start(&program).await;
        let config = server.settings("operator", "setup", "");
        let setup = run(&["setup", "--config", &config], &[]).await;
        assert_eq!(setup.code, Some(0), "{}", setup.stderr);

        let engines = [Engine::start().await, Engine::start().await];
        let workers = format!(
            "[[workers]]\nid = \"w1\"\nurl = \"{}\"\n[[workers]]\nid = \"w2\"\nurl = \"{}\"\n",
            engines[0].url, engines[1].url
        );
        let services = [
            server.service("ingest", "ingest-1", "").await,
            server.service("indexer", "indexer-1", "").await,
            server.service("affinity", "affinity-1", "").await,
            server.service("adapter", "adapter-1", &workers).await,
        ];
        let mut routers = [
            server.service("router", "router-1", "").await,
            server.service("router", "router-2", "").await,
        ];
        let mut apis = Vec::new();
        for router in &mut routers {
            let line = router.running.logs("serving clients api=").await;
            let (_, api) = line.split_once(" api=").unwrap();
            apis.push(api.trim().to_owned());
        }
        for service in services.iter().chain(&routers) {
            service.ready().await;
        }
        let mut conversations: Vec<_> = (1..=4).map(Conversation::new).collect();
        for conversation in &mut conversations {
            let first = conversation.turn(&apis[0]).await;
            for turn in 1..4 {
                let served = conversation.turn(&apis[turn % 2]).await;
                assert_eq!(served.target, first.target, "turn {turn}");
                assert!(0 < served.cached, "turn {turn}: {served:?}");
            }
        }
        let drain = format!("{}/api/v1/workers/w1/drain", routers[0].admin);
        let drained = Client::new()
            .post(&drain, &[], &serde_json::json!({}))
            .await;
        assert_eq!(drained.status, 200, "{}", drained.text());
        for service in services.into_iter().chain(routers) {
            assert_eq!(service.refusals(), Vec::<String>::new());
            assert_eq!(service.running.interrupt().await.0, Some(0));
        }
    }
}

/// The names under which fleet, incarnations and the others are tried to be written.
const KEYS: [&str; 7] = [
    "adapter-1",
    "affinity-1",
    "indexer-1",
    "ingest-1",
    "router-1",
    "w1",
    "w3",
];
/// What is not kept, so that nobody is told whether it was taken.
const EPHEMERAL: [&str; 2] = [topics::LOAD.name, topics::RESERVATIONS.name];

/// Writes whatever it can, as a user; what it was told was written.
async fn forge(server: &Server, user: &str) -> Vec<String> {
    let bus = &server.bus(user).await;
    let logs = topics::LAYOUT.topics.iter().map(async |topic| {
        let record = Record(Bytes::from_static(b"forged"));
        let wrote = bus.append(&first(topic.name), vec![record]).await.is_ok();
        (
            topic.name.to_owned(),
            wrote && !EPHEMERAL.contains(&topic.name),
        )
    });
    let tables = topics::LAYOUT.tables.iter();
    let tables = tables.flat_map(|it| KEYS.map(|key| (it.table, key)));
    let tables = tables.map(async |(table, key)| {
        let wrote = put(bus.as_ref(), &table, key).await;
        (format!("{}/{key}", table.0), wrote)
    });
    let (logs, tables) = tokio::join!(join_all(logs), join_all(tables));
    let wrote = logs.into_iter().chain(tables).filter(|it| it.1);
    let mut wrote: Vec<String> = wrote.map(|it| it.0).collect();
    wrote.sort();
    wrote
}

fn first(topic: &'static str) -> Partition {
    Partition { topic, index: 0 }
}

/// What a service that was taken over could harm others with.
#[tokio::test]
async fn no_user_may_write_what_is_another_services() {
    let all = |table: &str| KEYS.map(|key| format!("{table}/{key}")).to_vec();
    let own = |text: &str| vec![text.to_owned()];
    let expected = [
        (
            "ingest",
            [own("fleet/ingest-1"), all("incarnations"), own("kv-events")].concat(),
        ),
        ("indexer", own("fleet/indexer-1")),
        (
            "affinity",
            [all("bindings"), own("fleet/affinity-1")].concat(),
        ),
        (
            "adapter",
            [own("fleet/adapter-1"), own("fleet/w1"), all("incarnations")].concat(),
        ),
        (
            "router",
            [
                own("decisions"),
                all("drains"),
                own("fleet/router-1"),
                own("outcomes"),
            ]
            .concat(),
        ),
    ];
    for program in programs() {
        let server = Server::start(&program).await;
        let operator = server.bus("operator").await;
        let router = server.bus("router").await;
        let heard = EPHEMERAL.map(async |topic| {
            let records = router.read(&first(topic), Start::Earliest).await;
            records.unwrap()
        });
        let heard = join_all(heard).await;
        let wrote = expected
            .each_ref()
            .map(async |(user, _)| (*user, forge(&server, user).await));
        assert_eq!(join_all(wrote).await, expected);

        // Of what is not kept, only what the adapter and what the router sent has come.
        for mut records in heard {
            let sent = timeout(PATIENCE, records.next()).await.unwrap();
            assert!(sent.unwrap().is_ok());
            let more = timeout(Duration::from_millis(200), records.next()).await;
            assert!(more.is_err(), "{more:?}");
        }
        // What was refused is not there, whatever its sender was told.
        let events = operator.tail(&first(topics::KV_EVENTS.name)).await.unwrap();
        assert_eq!(events.last, Some(Offset(1)));
        let (bindings, key) = (&topics::BINDINGS.table, Key(Bytes::from_static(b"w1")));
        let indexer = server.bus("indexer").await;
        assert!(indexer.get(bindings, &key).await.is_err());
        assert!(indexer.watch(bindings).await.is_err());
    }
}

/// Whether a value could be written, after those whom others were faster with.
async fn put(bus: &dyn Bus, table: &Table, key: &str) -> bool {
    let key = Key(Bytes::copy_from_slice(key.as_bytes()));
    let is_own = *table == topics::FLEET.table || *table == topics::DRAINS.table;
    let mut expect = match is_own {
        true => Expect::Any,
        false => Expect::Absent,
    };
    loop {
        let value = Some(Bytes::from_static(b"forged"));
        match bus.put(table, key.clone(), value, expect).await {
            Ok(_) => return true,
            Err(BusError::Conflict { current }) => {
                expect = current.map_or(Expect::Absent, Expect::At);
            }
            Err(_) => return false,
        }
    }
}
