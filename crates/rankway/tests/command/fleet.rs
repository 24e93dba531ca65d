//! Engines, and Rankway before them.

use std::path::Path;

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::http_client::Client;
use crate::process::{Ended, PATIENCE, POLL, Running, free_ports};

/// Attention-DP ranks of each engine.
pub(crate) const RANKS: u16 = 4;

/// A fake engine, whose ports stay the same when it is started again.
pub(crate) struct Engine {
    running: Running,
    ports: Ports,
    pub(crate) url: String,
}

impl Engine {
    pub(crate) async fn start() -> Self {
        Self::start_as(&[]).await
    }

    /// Each rank has `kv_blocks` blocks.
    pub(crate) async fn start_with(kv_blocks: &str) -> Self {
        Self::start_as(&["--kv-blocks", kv_blocks]).await
    }

    /// With more flags, of which `--start-rank` is at most 4.
    pub(crate) async fn start_as(flags: &[&str]) -> Self {
        Self::start_at(Ports(free_ports(1 + 4 * RANKS)), flags).await
    }

    async fn start_at(ports: Ports, flags: &[&str]) -> Self {
        let Ports(port) = ports;
        let listen = format!("127.0.0.1:{port}");
        let events = (port + 1).to_string();
        let replay = (port + 1 + 2 * RANKS).to_string();
        let command = [
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
        let mut running = Running::start(&[&command, flags].concat());
        let line = running.says("serving").await;
        let url = line.strip_prefix("serving ").unwrap().to_owned();
        Self {
            running,
            ports,
            url,
        }
    }

    /// `host:port`, which is also its name.
    pub(crate) fn name(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }

    /// Asks it, and nobody before it, for an answer at `rank`.
    pub(crate) async fn answer(&self, rank: u16, first_token: u32) {
        let prompt: Vec<u32> = (first_token..first_token + 80).collect();
        let body = json!({"model": "fake-model", "prompt": prompt, "max_tokens": 2});
        let rank = rank.to_string();
        let headers = [("x-data-parallel-rank", rank.as_str())];
        let url = format!("{}/v1/completions", self.url);
        let answer = Client::new().post(&url, &headers, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// `kill -9`; the ports on which to start it again.
    pub(crate) async fn kill(self) -> Ports {
        self.running.kill().await;
        self.ports
    }
}

/// The port of an engine's HTTP API; those of its events and their replay follow.
#[derive(Clone, Copy)]
pub(crate) struct Ports(u16);

impl Ports {
    pub(crate) async fn start(self) -> Engine {
        Engine::start_at(self, &[]).await
    }
}

/// `rankway up`.
pub(crate) struct Up {
    running: Running,
    pub(crate) api: String,
    pub(crate) admin: String,
}

impl Up {
    /// On ports of its own.
    pub(crate) async fn start(data: &Path, engines: &[&Engine]) -> Self {
        let up = Self::start_at("127.0.0.1:0", "127.0.0.1:0", data, engines).await;
        up.ready(engines.len()).await;
        up
    }

    /// On ports of its own, with a settings file instead of the engines' URLs, `engines` in it.
    pub(crate) async fn start_told(data: &Path, engines: usize, settings: &str) -> Self {
        let up = Self::start_unready(data, settings).await;
        up.ready(engines).await;
        up
    }

    /// On ports of its own, with a settings file that is there.
    pub(crate) async fn start_from(data: &Path, file: &str, engines: usize) -> Self {
        let at = ["127.0.0.1:0", "127.0.0.1:0"];
        let up = Self::start_with(at, data, &["--config", file]).await;
        up.ready(engines).await;
        up
    }

    /// The same, without waiting for it to be ready.
    pub(crate) async fn start_unready(data: &Path, settings: &str) -> Self {
        let file = data.join("rankway.toml");
        std::fs::write(&file, settings).unwrap();
        let at = ["127.0.0.1:0", "127.0.0.1:0"];
        Self::start_with(at, data, &["--config", file.to_str().unwrap()]).await
    }

    /// Waits until `/readyz` answers so, with `part` in it.
    pub(crate) async fn until_readyz(&self, status: u16, part: &str) {
        let client = Client::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = client.get(&format!("{}/readyz", self.admin)).await;
            if ready.status == status && ready.text().contains(part) {
                return;
            }
            let (said, log) = (ready.text(), self.running.output());
            assert!(Instant::now() < deadline, "{said}\n{log}");
            sleep(POLL).await;
        }
    }

    async fn start_at(api: &str, admin: &str, data: &Path, engines: &[&Engine]) -> Self {
        let urls: Vec<&str> = engines.iter().map(|it| it.url.as_str()).collect();
        Self::start_with([api, admin], data, &["--worker-urls", &urls.join(",")]).await
    }

    async fn start_with([api, admin]: [&str; 2], data: &Path, engines: &[&str]) -> Self {
        let command = [
            "up",
            "--listen",
            api,
            "--admin-listen",
            admin,
            "--data-dir",
            data.to_str().unwrap(),
        ];
        let mut running = Running::start(&[&command, engines].concat());
        let line = running.logs("serving").await;
        let of = |key: &str| {
            let (_, rest) = line.split_once(&format!(" {key}=")).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let (api, admin) = (of("api"), of("admin"));
        Self {
            running,
            api,
            admin,
        }
    }

    /// Waits until it says that it is ready and knows `engines` engines.
    async fn ready(&self, engines: usize) {
        let client = Client::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = client.get(&format!("{}/readyz", self.admin)).await;
            let known = client.get(&format!("{}/api/v1/workers", self.admin)).await;
            let known = known.json()["workers"].as_array().unwrap().len();
            if ready.status == 200 && known == engines {
                return;
            }
            let why = ready.text();
            let log = self.running.output();
            assert!(
                Instant::now() < deadline,
                "{known} engines known; {why}\n{log}"
            );
            sleep(POLL).await;
        }
    }

    /// `kill -9`, and again on the same addresses over the same folder.
    pub(crate) async fn kill(self) -> Killed {
        let address = |url: &str| url.strip_prefix("http://").unwrap().to_owned();
        let killed = Killed {
            api: address(&self.api),
            admin: address(&self.admin),
        };
        self.running.kill().await;
        killed
    }

    /// Ctrl-C.
    pub(crate) async fn interrupt(self) -> (Option<i32>, std::time::Duration) {
        self.running.interrupt().await
    }

    /// Runs a command that asks its admin API.
    pub(crate) async fn ask(&self, args: &[&str]) -> Ended {
        let args = [args, &["--admin-url", &self.admin]].concat();
        crate::process::run(&args, &[]).await
    }

    pub(crate) fn log(&self) -> String {
        self.running.output()
    }
}

/// Where an `up` that was killed had been.
pub(crate) struct Killed {
    api: String,
    admin: String,
}

impl Killed {
    pub(crate) async fn start(self, data: &Path, engines: &[&Engine]) -> Up {
        let up = Up::start_at(&self.api, &self.admin, data, engines).await;
        up.ready(engines.len()).await;
        up
    }

    /// With a settings file that is there.
    pub(crate) async fn start_from(self, data: &Path, file: &str, engines: usize) -> Up {
        let at = [self.api.as_str(), self.admin.as_str()];
        let up = Up::start_with(at, data, &["--config", file]).await;
        up.ready(engines).await;
        up
    }

    /// Starts it and kills it before it is ready.
    pub(crate) async fn stumble(self, data: &Path, engines: &[&Engine]) -> Self {
        let up = Up::start_at(&self.api, &self.admin, data, engines).await;
        up.kill().await
    }
}
