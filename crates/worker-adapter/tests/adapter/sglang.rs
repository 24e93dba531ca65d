//! What is found out about an SGLang.

use bus::Start;
use contracts::{Encoding, LoadReport, topics};
use domain::{Endpoint, EngineKind, HeaderSpace, KvEndpoints, RankControl, TargetState, Worker};
use engine_wire::sglang::{KvEvents, ServerInfo, encode_metrics, encode_server_info};
use engine_wire::{Gauges, encode_models};
use futures::StreamExt;
use tokio::time::timeout;
use worker_adapter::{EngineName, WorkerConfig, probe};

use crate::running::{DEADLINE, Running, memory};
use crate::stub::Stub;

fn info() -> ServerInfo {
    ServerInfo {
        version: "0.5.23".to_owned(),
        model: "m".parse().unwrap(),
        dp_size: 2,
        attention_dp: true,
        nodes: 1,
        page_size: Some(16),
        max_tokens: Some(32_768),
        kv_events: Some(KvEvents {
            host: "*".to_owned(),
            publish: 5597,
            replay: Some(5697),
            topic: "kv".to_owned(),
            page_size: Some(16),
        }),
    }
}

fn model() -> engine_wire::Model {
    engine_wire::Model {
        name: "m".parse().unwrap(),
        max_model_len: Some(4096),
        parent: None,
    }
}

async fn started(info: &ServerInfo) -> Stub {
    let stub = Stub::silent().await;
    stub.set("/server_info", 200, &encode_server_info(info));
    stub.set("/v1/models", 200, &encode_models(&[model()], "sglang", 1));
    stub.set("/ready", 200, "");
    stub
}

async fn described(info: &ServerInfo, config: impl FnOnce(WorkerConfig) -> WorkerConfig) -> Worker {
    let stub = started(info).await;
    probe(&config(stub.config())).await.unwrap()
}

async fn refusal(info: &ServerInfo, config: impl FnOnce(WorkerConfig) -> WorkerConfig) -> String {
    let stub = started(info).await;
    let error = probe(&config(stub.config())).await.unwrap_err();
    error.to_string()
}

#[tokio::test]
async fn it_is_found_to_be_one_and_describes_itself() {
    let worker = described(&info(), |config| config).await;
    assert_eq!(worker.engine, EngineKind::Sglang);
    assert_eq!(worker.version, "0.5.23");
    assert_eq!((worker.start_rank, worker.dp_size), (0, 2));
    assert_eq!((worker.page_size.get(), worker.block_size.get()), (16, 16));
    assert_eq!(worker.kv_blocks, Some(2048));
    assert_eq!(worker.state, TargetState::Ready);
    let capability = worker.capability;
    assert_eq!(capability.header_space, HeaderSpace::Global);
    let control = |endpoint| *capability.rank_control.get(endpoint);
    assert_eq!(control(Endpoint::Chat), RankControl::Strict);
    assert_eq!(control(Endpoint::Embeddings), RankControl::None);
    assert!(capability.rank_report.get(Endpoint::Chat));
    let KvEndpoints::Zmq(endpoints) = worker.kv_endpoints else {
        panic!("it says where it publishes");
    };
    let second = domain::RankEndpoint {
        dp_rank: domain::DpRank::new(1),
        publish: "tcp://127.0.0.1:5598".to_owned(),
        replay: Some("tcp://127.0.0.1:5698".to_owned()),
        topic: "kv".to_owned(),
    };
    assert_eq!((endpoints.len(), &endpoints[1]), (2, &second));
}

#[tokio::test]
async fn tiny_pages_are_gathered_into_blocks() {
    let check = async |page, set, expected| {
        let mut info = info();
        info.kv_events.as_mut().unwrap().page_size = Some(page);
        let worker = described(&info, |config| WorkerConfig {
            block_size: set,
            ..config
        })
        .await;
        assert_eq!(worker.page_size.get(), page);
        assert_eq!(worker.block_size.get(), expected);
        assert_eq!(worker.kv_blocks, Some(32_768 / u64::from(expected)));
    };
    for (page, set, expected) in [
        (1, None, 16),
        (1, Some(32), 32),
        (3, None, 18),
        (16, None, 16),
        (64, None, 64),
        (64, Some(128), 128),
    ] {
        check(page, set, expected).await;
    }
    let set = |config| WorkerConfig {
        block_size: Some(24),
        ..config
    };
    let expected = "worker w1 has pages of 16 tokens, of which blocks of 24 cannot be made: correct `block_size`";
    assert_eq!(refusal(&info(), set).await, expected);
    let mut huge = info();
    huge.kv_events.as_mut().unwrap().page_size = Some(u32::MAX);
    let expected = "worker w1 has a block or page of 4294967295 tokens, which is not 1 to 65536 tokens: correct `block_size`";
    assert_eq!(refusal(&huge, |config| config).await, expected);
}

#[tokio::test]
async fn a_version_whose_events_cannot_be_used_is_refused() {
    let old = ServerInfo {
        version: "0.5.8".to_owned(),
        ..info()
    };
    let expected =
        "worker w1 runs SGLang version 0.5.8, whose KV events cannot be used: run 0.5.9 or newer";
    assert_eq!(refusal(&old, |config| config).await, expected);
    let replicas = ServerInfo {
        version: "0.5.14".to_owned(),
        attention_dp: false,
        ..info()
    };
    let expected = "worker w1 runs SGLang version 0.5.14, whose replicas all publish their events at one port: run \
                    0.5.15 or newer, or attention DP";
    assert_eq!(refusal(&replicas, |config| config).await, expected);
    let silent = ServerInfo {
        kv_events: None,
        ..replicas
    };
    let worker = described(&silent, |config| config).await;
    assert_eq!(worker.kv_endpoints, KvEndpoints::None);
    // Until 0.5.6 it answered elsewhere.
    let stub = Stub::silent().await;
    stub.set("/get_server_info", 200, &encode_server_info(&old));
    stub.set("/v1/models", 200, &encode_models(&[model()], "sglang", 1));
    let config = WorkerConfig {
        engine: Some(EngineName::Sglang),
        ..stub.config()
    };
    let error = probe(&config).await.unwrap_err().to_string();
    assert!(error.contains("run 0.5.9 or newer"), "{error}");
}

#[tokio::test]
async fn something_else_is_told_apart() {
    let vllm = Stub::start(0, 1).await;
    let config = WorkerConfig {
        engine: Some(EngineName::Sglang),
        ..vllm.config()
    };
    let error = probe(&config).await.unwrap_err().to_string();
    let expected = format!(
        "{}/server_info answers 404: is SGLang's HTTP API there?",
        vllm.url
    );
    assert_eq!(error, expected);
    // A vLLM in its development mode answers there too.
    vllm.set("/server_info", 200, "{\"vllm_config\":\"...\"}");
    let worker = probe(&vllm.config()).await.unwrap();
    assert_eq!(worker.engine, EngineKind::Vllm);
}

#[tokio::test]
async fn a_server_that_is_paused_is_not_ready() {
    let stub = started(&info()).await;
    stub.set("/ready", 503, "");
    let worker = probe(&stub.config()).await.unwrap();
    assert_eq!(worker.state, TargetState::Warming);
    // An older one does not say.
    stub.forget("/ready");
    let worker = probe(&stub.config()).await.unwrap();
    assert_eq!(worker.state, TargetState::Ready);
}

pub(crate) async fn next_report(running: &Running) -> LoadReport {
    let partition = topics::LOAD.partition_of("w1");
    let mut reports = running.bus.read(&partition, Start::Earliest).await.unwrap();
    let report = timeout(DEADLINE, reports.next()).await.unwrap();
    LoadReport::from_bytes(&report.unwrap().unwrap().record.0).unwrap()
}

#[tokio::test]
async fn its_load_is_reported_by_whichever_way_it_says_it() {
    let expected = |report: LoadReport| {
        let ranks = report.ranks.into_iter();
        let ranks: Vec<_> = ranks.map(|it| (it.running, it.waiting)).collect();
        assert_eq!(ranks, [(3, 1), (3, 1)]);
    };
    let stub = started(&info()).await;
    let load = |rank: u32| {
        format!(
            r#"{{"dp_rank":{rank},"num_running_reqs":3,"num_waiting_reqs":1,"token_usage":0.5}}"#
        )
    };
    let body = format!(r#"{{"loads":[{},{}]}}"#, load(0), load(1));
    stub.set("/v1/loads", 200, &body);
    expected(next_report(&Running::start(&stub, memory())).await);

    let stub = started(&info()).await;
    let gauges = Gauges {
        running: Some(3),
        waiting: Some(1),
        kv_used: Some(0.5),
        ..Gauges::default()
    };
    let ranks = [0, 1].map(|rank| (domain::DpRank::new(rank), gauges));
    stub.set("/metrics", 200, &encode_metrics("m", &ranks.into()));
    expected(next_report(&Running::start(&stub, memory())).await);

    // It serves though nobody knows how busy it is.
    let stub = started(&info()).await;
    let running = Running::start(&stub, memory());
    let report = next_report(&running).await;
    assert!(report.ranks.is_empty());
    let ready = |worker: Option<&Worker>| worker.is_some_and(|it| it.state == TargetState::Ready);
    running.until(ready).await;
}
