//! A fake engine's life: bind everything, then run until told to stop.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::ListenerExt as _;
use domain::RankEndpoint;
use engine_model::Engine;
use service_kit::CancellationToken;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{info, warn};
use zeromq::ZmqError;

use crate::announcer::Announcer;
use crate::config::Checked;
use crate::dialect::Dialect;
use crate::drained::Drained;
use crate::driver::{Driver, DriverHandle};
use crate::http::{self, Surface};
use crate::line::LineState;
use crate::publisher::{Ports, Publication, Publisher};
use crate::ranks::Ranks;
use crate::{Config, InvalidConfig};

/// How often free ports in a row are looked for.
const FREE_PORT_TRIES: u32 = 100;

/// How long open connections may take to end after the engine was told to stop.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(2);

/// Why a fake engine cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Its configuration makes no sense.
    #[error("check the configuration of the engine")]
    Config(#[from] InvalidConfig),
    /// It cannot listen for requests.
    #[error("listen on {address}: choose another listen address")]
    Http {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// It cannot publish events.
    #[error(
        "publish KV events on {host} port {port}: choose another kv_events_port and replay_port"
    )]
    Events {
        /// The host of the address.
        host: IpAddr,
        /// The port.
        port: u16,
        /// Why not.
        #[source]
        source: ZmqError,
    },
}

/// A fake engine whose sockets are bound.
pub struct EngineSim {
    http_addr: SocketAddr,
    listener: TcpListener,
    kv_endpoints: Vec<RankEndpoint>,
    publishers: Vec<Publisher>,
    driver: Driver,
    surface: Surface,
}

impl EngineSim {
    /// Checks `config` and binds all sockets; nothing is served yet.
    pub async fn bind(config: Config) -> Result<Self, BindError> {
        let checked = config.checked()?;
        let http_error = |source| BindError::Http {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(http_error)?;
        let http_addr = listener.local_addr().map_err(http_error)?;
        let engine = Engine::new(checked.engine, config.dp_size)
            .expect("the counts were checked to be at least 1");
        let (publishers, senders) = publishers(&config, checked.ranks, http_addr.ip()).await?;
        let kv_endpoints: Vec<_> = publishers.iter().map(|it| it.endpoint().clone()).collect();
        let lines = publishers.iter().map(Publisher::line).collect();
        let drained = Drained::of(&config);
        let announcer = Announcer {
            drained: drained.clone(),
            dialect: config.engine,
            ranks: checked.ranks,
            block_size: checked.engine.block_size,
            clock: service_kit::Clock::system(),
            only_first: config.misbehave.only_rank_0_publishes,
            publishers: senders,
        };
        let restart_after = config.misbehave.restart_after;
        let kept = config.conversations.map(|it| it.router(config.max_running));
        let (driver, handle) = Driver::new(engine, config.speed_up, restart_after, announcer, kept);
        let surface = surface(config, checked, handle, &kv_endpoints, (drained, lines));
        Ok(Self {
            http_addr,
            listener,
            kv_endpoints,
            publishers,
            driver,
            surface,
        })
    }

    /// Where it serves HTTP.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Where its ranks publish KV events, by rank; empty without events.
    pub fn kv_endpoints(&self) -> &[RankEndpoint] {
        &self.kv_endpoints
    }

    /// Serves until told to stop. Requests still open then end with an error.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        info!(address = %self.http_addr, ranks = self.kv_endpoints.len(), "fake engine serves");
        // Whatever ends first ends the others: a half of an engine would only look like one.
        let stop = shutdown.child_token();
        let mut tasks = JoinSet::new();
        for publisher in self.publishers {
            tasks.spawn(stopping(stop.clone(), publisher.run(stop.clone())));
        }
        tasks.spawn(stopping(stop.clone(), self.driver.run(stop.clone())));

        let listener = self.listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                warn!(%error, "nagle's algorithm stays on");
            }
        });
        let server = axum::serve(listener, http::routes(self.surface))
            .with_graceful_shutdown(stop.clone().cancelled_owned());
        let patience = async {
            stop.cancelled().await;
            tokio::time::sleep(SHUTDOWN_PATIENCE).await;
        };
        let served = tokio::select! {
            served = server => served.context("serve the engine's HTTP API"),
            () = patience => Ok(()),
        };
        stop.cancel();
        while let Some(ended) = tasks.join_next().await {
            ended.context("run the engine")?;
        }
        served
    }
}

/// Runs `task`, and tells the others to stop when it ends, even by a panic.
async fn stopping(stop: CancellationToken, task: impl Future<Output = ()>) {
    let _stops_others = stop.drop_guard();
    task.await;
}

/// Binds the event sockets of all ranks; none without events.
async fn publishers(
    config: &Config,
    ranks: Ranks,
    host: IpAddr,
) -> Result<(Vec<Publisher>, Vec<mpsc::Sender<Publication>>), BindError> {
    let mut bound = (Vec::new(), Vec::new());
    let Some(publish) = config.kv_events_port else {
        return Ok(bound);
    };
    if config.engine == Dialect::TensorRtLlm {
        // Whoever wants its events asks for them.
        return Ok(bound);
    }
    // SGLang says only where the first rank is: free ports must be in a row.
    let in_a_row = config.engine == Dialect::Sglang;
    let base = |port: u16| match port {
        0 if in_a_row => free_ports(host, ranks.count),
        port => port,
    };
    let publish = base(publish);
    let replay = config.replay_port.map(base);
    for rank in ranks.iter() {
        let ports = Ports {
            host,
            publish: offset(publish, rank.get()),
            replay: replay.map(|base| offset(base, rank.get())),
            topic: &config.kv_events_topic,
            keep: config.buffer_steps,
            late: config.misbehave.publish_late,
            lossy: config.misbehave.lossy_events,
            lossy_replays: config.misbehave.lossy_replays,
            seed: config.seed,
        };
        let (publisher, sender) = Publisher::bind(rank, &ports)
            .await
            .map_err(|(port, source)| BindError::Events { host, port, source })?;
        bound.0.push(publisher);
        bound.1.push(sender);
    }
    Ok(bound)
}

/// The first of `count` ports in a row that nobody listens on at the moment, or 0 where none are found.
fn free_ports(host: IpAddr, count: u32) -> u16 {
    let free = |port: u16| std::net::TcpListener::bind((host, port)).ok();
    for _ in 0..FREE_PORT_TRIES {
        // The system's choice is held while its neighbours are tried.
        let Some(first) = free(0) else { continue };
        let Ok(base) = first.local_addr().map(|it| it.port()) else {
            continue;
        };
        let next = |at| free(base.checked_add(u16::try_from(at).ok()?)?);
        if (1..count).all(|at| next(at).is_some()) {
            return base;
        }
    }
    0
}

/// The port of `rank`; 0 stays 0, any free one. The sum was checked to be a port.
fn offset(base: u16, rank: u32) -> u16 {
    match base {
        0 => 0,
        base => base.saturating_add(u16::try_from(rank).unwrap_or(u16::MAX)),
    }
}

fn surface(
    config: Config,
    checked: Checked,
    driver: DriverHandle,
    kv_endpoints: &[RankEndpoint],
    (drained, lines): (Option<Drained>, Vec<LineState>),
) -> Surface {
    Surface {
        sources: crate::sources::body(&config, &checked, kv_endpoints),
        conversations: config.conversations,
        drained,
        lines,
        driver,
        model: checked.model,
        lora_adapters: checked.lora_adapters,
        dialect: config.engine,
        release: checked.release,
        engine: checked.engine,
        ranks: checked.ranks,
        misbehave: config.misbehave,
        max_model_len: checked.max_model_len,
        seed: config.seed,
        clock: service_kit::Clock::system(),
        next_answer: AtomicU64::new(0),
    }
}
