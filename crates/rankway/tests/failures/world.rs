//! NATS, the five services, a second adapter, two routers and two engines.

use std::fs;
use std::net::Ipv4Addr;

use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::http_client::Client;
use crate::network::Network;
use crate::process::{PATIENCE, POLL, free_ports};
use crate::service::Service;

/// Attention-DP ranks of each engine.
const RANKS: u16 = 4;

pub(crate) struct World {
    services: Vec<Service>,
    /// Where clients find the routers.
    pub(crate) apis: Vec<String>,
    pub(crate) network: Network,
    folder: TempDir,
}

impl World {
    /// All of it, ready, but for the second adapter.
    pub(crate) async fn start() -> Self {
        let mut world = Self {
            services: Vec::new(),
            apis: Vec::new(),
            network: Network::of(10),
            folder: TempDir::new().unwrap(),
        };
        let nats = world.nats();
        let engines = [world.engine("engine-1"), world.engine("engine-2")];
        let settings = format!(
            "worker_urls = [\"{}\", \"{}\"]\n[bus]\nurl = \"nats://{nats}\"\ntopic_bytes = 20000000\n\
             [affinity]\nsecret = \"0123456789abcdef\"\n[admin]\ntoken = \"of these tests\"\n\
             [grpc]\ninsecure = true\n",
            engines[0], engines[1]
        );
        fs::write(world.folder.path().join("rankway.toml"), settings).unwrap();
        for name in ["ingest", "indexer", "affinity", "adapter"] {
            world.service(name, name);
        }
        for name in ["router-1", "router-2"] {
            let (ip, port) = world.service("router", name);
            world.apis.push(format!("http://{ip}:{port}"));
        }
        for service in &world.services {
            service.ready().await;
        }
        for api in &world.apis {
            world.knows_all(api).await;
        }
        world
    }

    fn nats(&mut self) -> String {
        let (place, port) = (self.network.place(), free_ports(1));
        let ip = place.ip;
        let store = self.folder.path().join("nats").to_str().unwrap().to_owned();
        let args = [
            "-a",
            &ip.to_string(),
            "-p",
            &port.to_string(),
            "-js",
            "-sd",
            &store,
        ];
        let args = args.map(str::to_owned);
        let nats = Service::start(
            "nats",
            place,
            ("nats-server", &args),
            (port, None),
            self.folder.path(),
        );
        self.services.push(nats);
        format!("{ip}:{port}")
    }

    fn engine(&mut self, name: &'static str) -> String {
        let (place, port) = (self.network.place(), free_ports(1 + 2 * RANKS));
        let listen = format!("{}:{port}", place.ip);
        let (events, replay) = ((port + 1).to_string(), (port + 1 + RANKS).to_string());
        let args = [
            "fake-engine",
            "--listen",
            &listen,
            "--kv-events-port",
            &events,
            "--replay-port",
            &replay,
            "--speed-up",
            "10",
        ];
        let args = args.map(str::to_owned);
        let program = env!("CARGO_BIN_EXE_rankway");
        let engine = Service::start(
            name,
            place,
            (program, &args),
            (port, None),
            self.folder.path(),
        );
        self.services.push(engine);
        format!("http://{listen}")
    }

    /// Where it is, and the port that clients find a router at.
    fn service(&mut self, service: &str, name: &'static str) -> (Ipv4Addr, u16) {
        let (place, port) = (self.network.place(), free_ports(2));
        let (ip, admin) = (place.ip, port + 1);
        let path = |name: &str| self.folder.path().join(name).to_str().unwrap().to_owned();
        let taken = match service {
            "router" => "--listen",
            _ => "--grpc-listen",
        };
        let args = [
            service,
            "--config",
            &path("rankway.toml"),
            "--data-dir",
            &path(name),
            "--instance",
            name,
            "--admin-listen",
            &format!("{ip}:{admin}"),
            taken,
            &format!("{ip}:{port}"),
        ];
        let args = args.map(str::to_owned);
        let program = env!("CARGO_BIN_EXE_rankway");
        let ports = (port, Some(admin));
        self.services.push(Service::start(
            name,
            place,
            (program, &args),
            ports,
            self.folder.path(),
        ));
        (ip, port)
    }

    /// A second adapter of the same engines.
    pub(crate) async fn add_adapter(&mut self) {
        self.service("adapter", "adapter-2");
        self.of("adapter-2").ready().await;
    }

    pub(crate) fn of(&mut self, name: &str) -> &mut Service {
        let mut services = self.services.iter_mut();
        services.find(|it| it.name == name).unwrap()
    }

    /// Waits until all are ready.
    pub(crate) async fn ready(&self) {
        for service in &self.services {
            service.ready().await;
        }
    }

    async fn knows_all(&self, api: &str) {
        let url = format!("{api}/workers");
        let known = async {
            loop {
                let known = Client::new().get(&url).await.json();
                let workers = known["workers"].as_array().unwrap().iter();
                if workers.filter(|it| it["state"] == "ready").count() == 2 {
                    return;
                }
                sleep(POLL).await;
            }
        };
        timeout(PATIENCE, known).await.unwrap();
    }

    /// The last of what all have logged.
    pub(crate) fn logs(&self) -> String {
        let logs = self
            .services
            .iter()
            .map(|it| format!("== {}\n{}\n", it.name, it.log()));
        logs.collect()
    }
}
