//! Whether first ranks are kept, tried over real sockets: against fake engines that keep them, forget them, or show
//! nothing.

use std::net::{Ipv4Addr, SocketAddr};

use bus::{Expect, Key};
use bytes::Bytes;
use contracts::{Encoding, topics};
use domain::{Endpoint, Epoch, FirstRank, Incarnation, RankControl, Timestamp, Worker};
use engine_sim::{Config, Dialect, EngineSim};
use service_kit::CancellationToken;
use tokio::task::JoinSet;
use worker_adapter::WorkerConfig;

use crate::running::{Running, memory};
use crate::stub::Stub;
use crate::tensorrt_llm;

/// A fake TensorRT-LLM that serves until it is stopped.
struct Sim {
    address: SocketAddr,
    shutdown: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Sim {
    async fn start(port: u16, dp_size: u32, conversations: &str) -> Self {
        let sim = EngineSim::bind(Config {
            engine: Dialect::TensorRtLlm,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            dp_size,
            kv_blocks: 256,
            speed_up: 50.0,
            kv_events_port: None,
            replay_port: None,
            conversations: Some(conversations.parse().unwrap()),
            ..Config::default()
        });
        let sim = sim.await.unwrap();
        let (address, shutdown) = (sim.http_addr(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(sim.run(shutdown.clone()));
        Self {
            address,
            shutdown,
            tasks,
        }
    }

    fn config(&self) -> WorkerConfig {
        WorkerConfig {
            id: Some("w1".parse().unwrap()),
            ..WorkerConfig::at(format!("http://{}", self.address).parse().unwrap())
        }
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

fn is(worker: Option<&Worker>, first_rank: FirstRank, control: RankControl) -> bool {
    worker.is_some_and(|it| {
        let capability = it.capability;
        let chat = *capability.rank_control.get(Endpoint::Chat);
        capability.owns_bindings && (capability.first_rank, chat) == (first_rank, control)
    })
}

async fn finds(conversations: &str, dp_size: u32, first_rank: FirstRank, control: RankControl) {
    let sim = Sim::start(0, dp_size, conversations).await;
    let running = Running::before(vec![sim.config()], memory());
    running.until(|it| is(it, first_rank, control)).await;
    sim.stop().await;
}

#[tokio::test]
async fn an_engine_that_keeps_first_ranks_is_found_to() {
    for dp_size in [2, 3, 8] {
        let kept = FirstRank::ProvedKept;
        finds("router,unsaid", dp_size, kept, RankControl::FirstTurn).await;
    }
    let said = FirstRank::SaidKept;
    finds("router", 2, said, RankControl::FirstTurn).await;
}

/// So many that none passes by chance: three conversations are tried, twice.
const MANY_RANKS: u32 = 31;

#[tokio::test]
async fn an_engine_that_forgets_first_ranks_is_found_to() {
    let lost = FirstRank::ProvedLost;
    let forgets = "router,forgets-first-ranks";
    finds(forgets, MANY_RANKS, lost, RankControl::None).await;
}

#[tokio::test]
async fn an_engine_that_chooses_by_itself_is_not_tried() {
    let unasked = FirstRank::Unasked;
    finds("engine,unsaid", 2, unasked, RankControl::None).await;
}

/// Another release takes the place of the engine, and event-ingest has noticed that it began anew.
#[tokio::test]
async fn another_incarnation_is_tried_anew() {
    let new = Sim::start(0, MANY_RANKS, "router,unsaid").await;
    let (config, port) = (new.config(), new.address.port());
    let running = Running::before(vec![config], memory());
    let kept = |it: Option<&Worker>| is(it, FirstRank::ProvedKept, RankControl::FirstTurn);
    running.until(kept).await;
    new.stop().await;
    let old = Sim::start(port, MANY_RANKS, "router,forgets-first-ranks").await;
    let incarnation = Incarnation {
        epoch: Epoch::new(2),
        why: "a test says so".to_owned(),
        since: Timestamp::ZERO,
    };
    let table = &topics::INCARNATIONS.table;
    let (key, value) = (Key(Bytes::from_static(b"w1")), incarnation.to_bytes());
    let put = running.bus.put(table, key, Some(value), Expect::Any);
    put.await.unwrap();
    let lost = |it: Option<&Worker>| is(it, FirstRank::ProvedLost, RankControl::None);
    running.until(lost).await;
    old.stop().await;
}

#[tokio::test]
async fn what_answers_do_not_show_is_said() {
    let says = async |completions: Option<&str>, first_rank| {
        let unproven =
            r#""conversation_affinity":true,"rank_source":"router","first_rank_recorded":null"#;
        let stub: Stub = tensorrt_llm::worker(unproven).await;
        if let Some(answer) = completions {
            stub.set("/v1/completions", 200, answer);
        }
        let running = Running::start(&stub, memory());
        running
            .until(|it| is(it, first_rank, RankControl::None))
            .await;
        stub.stop().await;
    };
    says(None, FirstRank::NoAnswer).await;
    says(Some("<html>"), FirstRank::NoCachedTokens).await;
    let cached = |tokens: u32| {
        format!(
            r#"{{"usage":{{"prompt_tokens":66,"completion_tokens":1,"prompt_tokens_details":{{"cached_tokens":{tokens}}}}}}}"#
        )
    };
    says(Some(&cached(0)), FirstRank::NoCachedTokens).await;
    // Of a block that is not the prompt's own, a part may be found anywhere.
    says(Some(&cached(31)), FirstRank::NoCachedTokens).await;
    says(Some(&cached(64)), FirstRank::SharedCache).await;
}
