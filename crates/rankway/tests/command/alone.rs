//! Each service in a process of its own, over a real NATS server.

use std::fs;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::conversation::Conversation;
use crate::fleet::Engine;
use crate::http_client::Client;
use crate::process::{PATIENCE, POLL, Running, free_ports, run};

/// NATS and the processes of one deployment.
pub(crate) struct Deployment {
    pub(crate) folder: TempDir,
    /// Where the bus is.
    pub(crate) bus: String,
    engines: [Engine; 2],
    nats: Child,
}

/// A service that runs.
pub(crate) struct Alone {
    pub(crate) running: Running,
    admin: String,
}

/// A NATS server that keeps its streams in `folder`.
fn nats(folder: &TempDir, port: u16) -> Child {
    let nats = Command::new("nats-server")
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
        .arg(folder.path().join("nats"))
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    nats.expect("install nats-server (Debian, Ubuntu: apt-get install nats-server)")
}

impl Deployment {
    async fn start() -> Self {
        Self::before([Engine::start().await, Engine::start().await]).await
    }

    pub(crate) async fn before(engines: [Engine; 2]) -> Self {
        let folder = TempDir::new().unwrap();
        let port = free_ports(1);
        let nats = nats(&folder, port);
        let listens = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                sleep(POLL).await;
            }
        };
        timeout(PATIENCE, listens).await.unwrap();
        let settings = format!(
            "worker_urls = [\"{}\", \"{}\"]\n\
             [bus]\nurl = \"nats://127.0.0.1:{port}\"\ntopic_bytes = 20000000\n\
             [affinity]\nsecret = \"0123456789abcdef\"\n",
            engines[0].url, engines[1].url
        );
        fs::write(folder.path().join("rankway.toml"), settings).unwrap();
        Self {
            folder,
            bus: format!("nats://127.0.0.1:{port}"),
            engines,
            nats,
        }
    }

    /// Ends the bus, and leaves what it has stored.
    pub(crate) async fn stop_bus(&mut self) {
        self.nats.kill().await.unwrap();
    }

    /// Starts a service; each has a folder of its own, which it finds again.
    pub(crate) async fn service(&self, service: &str, folder: &str, flags: &[&str]) -> Alone {
        let path = |name: &str| self.folder.path().join(name).to_str().unwrap().to_owned();
        let (config, data) = (path("rankway.toml"), path(folder));
        let told = ["--config", &config, "--data-dir", &data];
        let admin = ["--admin-listen", "127.0.0.1:0"];
        let mut running = Running::start(&[&[service], &told[..], &admin, flags].concat());
        let line = running.logs("serving instance=").await;
        let (_, admin) = line.split_once(" admin=").unwrap();
        Alone {
            admin: admin.trim().to_owned(),
            running,
        }
    }

    /// A router that knows both engines, and where clients find it.
    pub(crate) async fn router(&self, folder: &str) -> (Alone, String) {
        let mut router = self
            .service("router", folder, &["--listen", "127.0.0.1:0"])
            .await;
        let line = router.running.logs("serving clients api=").await;
        let (_, api) = line.split_once(" api=").unwrap();
        let api = api.trim().to_owned();
        let knows_all = async {
            let workers = format!("{}/api/v1/workers", router.admin);
            loop {
                let known = Client::new().get(&workers).await.json();
                if known["workers"].as_array().unwrap().len() == self.engines.len() {
                    return;
                }
                sleep(POLL).await;
            }
        };
        let known = timeout(PATIENCE, knows_all).await;
        known.unwrap_or_else(|_| panic!("{}", router.running.output()));
        router.ready().await;
        (router, api)
    }
}

impl Alone {
    pub(crate) async fn ready(&self) {
        let url = format!("{}/readyz", self.admin);
        let ready = async {
            while Client::new().get(&url).await.status != 200 {
                sleep(POLL).await;
            }
        };
        let ready = timeout(PATIENCE, ready).await;
        ready.unwrap_or_else(|_| panic!("not ready:\n{}", self.running.output()));
    }
}

#[tokio::test]
async fn conversations_keep_their_ranks_across_routers_while_services_die() {
    let world = Deployment::start().await;
    let ingest = world.service("ingest", "ingest", &[]).await;
    let indexer = world.service("indexer", "indexer", &[]).await;
    let affinity = world.service("affinity", "affinity", &[]).await;
    let adapter = world.service("adapter", "adapter", &[]).await;
    for service in [&ingest, &indexer, &affinity, &adapter] {
        service.ready().await;
    }
    let routers = [
        world.router("router-1").await,
        world.router("router-2").await,
    ];
    let api = |turn: usize| routers[turn % 2].1.as_str();

    let mut conversations: Vec<_> = (1..=4).map(Conversation::new).collect();
    let mut targets = Vec::new();
    for conversation in &mut conversations {
        targets.push(conversation.turn(api(0)).await.target);
    }
    // Each turn at the other router, and always where the first one was.
    let mut indexer = Some(indexer);
    for turn in 1..7 {
        match turn {
            3 => indexer.take().unwrap().running.kill().await,
            5 => indexer = Some(world.service("indexer", "indexer", &[]).await),
            _ => {}
        }
        for (conversation, target) in conversations.iter_mut().zip(&targets) {
            let served = conversation.turn(api(turn)).await;
            assert_eq!(served.target, *target, "turn {turn}");
            assert!(0 < served.cached, "turn {turn}: {served:?}");
        }
    }
    indexer.unwrap().ready().await;
    let metrics = format!("{}/metrics", adapter.admin);
    let metrics = Client::new().get(&metrics).await.text();
    let counted = "rankway_bus_events{event=\"lost_connection\"} 0";
    assert!(metrics.contains(counted), "{metrics}");

    // Without the store no turn fails, and its successor knows the bindings.
    affinity.running.kill().await;
    for conversation in &mut conversations {
        conversation.turn(api(0)).await;
    }
    world
        .service("affinity", "affinity", &[])
        .await
        .ready()
        .await;

    let (code, _) = adapter.running.interrupt().await;
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn a_service_waits_for_a_bus_that_starts_after_it() {
    let folder = TempDir::new().unwrap();
    let port = free_ports(1);
    let data = folder.path().join("data");
    let url = format!("nats://127.0.0.1:{port}");
    let bus = ["--bus-url", &url, "--instance", "early"];
    let own = ["--admin-listen", "127.0.0.1:0", "--data-dir"];
    let flags = [&["ingest"], &bus[..], &own, &[data.to_str().unwrap()]].concat();
    let mut ingest = Running::start(&flags);
    ingest.logs("the bus cannot be reached yet").await;
    let _nats = nats(&folder, port);
    ingest.logs("serving instance=early").await;
}

#[tokio::test]
async fn a_service_alone_is_told_what_it_needs() {
    let bus = ("RANKWAY_BUS__URL", "nats://127.0.0.1:1");
    let check = async |command: &str, variables: &[(&str, &str)], parts: &[&str]| {
        let args: Vec<&str> = command.split(' ').collect();
        let ended = run(&args, variables).await;
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        for part in parts {
            assert!(
                ended.stderr.contains(part),
                "{:?} lacks {part:?}",
                ended.stderr
            );
        }
    };
    check("router", &[], &["bus.url", "rankway up"]).await;
    check("affinity", &[bus], &["affinity.secret"]).await;
    check("adapter", &[bus], &["--worker-urls"]).await;
    let open = ("RANKWAY_GRPC__LISTEN", "10.0.0.1:7070");
    check("indexer", &[bus, open], &["grpc.listen", "grpc.tls"]).await;
    let shard = ("RANKWAY_INDEXER__SHARD", "2/2");
    check("indexer", &[bus, shard], &["indexer.shard", "shard 2 of 2"]).await;
    let nats = "--bus-url nats://127.0.0.1:1";
    for service in ["ingest", "indexer", "affinity", "router", "adapter"] {
        let command = format!("{service} --bus-url 127.0.0.1:1");
        check(&command, &[], &["--bus-url", "nats://127.0.0.1:4222"]).await;
        let command = format!("{service} {nats} --grpc-listen localhost");
        check(&command, &[], &["--grpc-listen", "IP:port"]).await;
        let command = format!("{service} {nats} --grpc-listen 10.0.0.1:7070");
        let refused: &[&str] = match service {
            "router" => &["--grpc-listen", "--listen"],
            _ => &["grpc.listen", "grpc.tls"],
        };
        check(&command, &[], refused).await;
        let command = format!("{service} {nats} --instance a/b");
        check(&command, &[], &["--instance", "'/'"]).await;
    }
    let command = format!("indexer {nats} --shard");
    check(&format!("{command} 2/2"), &[], &["--shard", "shard 2 of 2"]).await;
    check(&format!("{command} 1"), &[], &["--shard", "such as 0/2"]).await;
    check(&format!("router {nats} --shard 0/2"), &[], &["--shard"]).await;
    check(
        "indexer",
        &[bus, ("RANKWAY_BUS_URL", "local")],
        &["RANKWAY_BUS__URL", "differ"],
    )
    .await;
    check(&format!("up {nats}"), &[], &["--bus-url", "rankway ingest"]).await;
    let elsewhere = ("RANKWAY_BUS__URL", "kafka:9092");
    check("ingest", &[elsewhere], &["kafka:9092", "nats://host:port"]).await;
}
