//! What is found out about a TensorRT-LLM, behind trtllm-serve and behind the worker in `deploy/trtllm`.

use domain::{Endpoint, EngineKind, HeaderSpace, KvEndpoints, RankControl, TargetState, Worker};
use worker_adapter::{EngineName, HeaderSpaceName, WorkerConfig, probe};

use crate::running::{Running, memory};
use crate::sglang::next_report;
use crate::stub::Stub;

const MODELS: &str = r#"{"object":"list","data":[{"id":"m","owned_by":"tensorrt_llm"}]}"#;

/// A trtllm-serve.
async fn serve() -> Stub {
    let stub = Stub::silent().await;
    stub.set("/health", 200, "");
    stub.set("/v1/models", 200, MODELS);
    stub.set("/version", 200, r#"{"version":"1.3.0rc27"}"#);
    stub
}

/// The worker, with what it says of conversations.
pub(crate) async fn worker(conversations: &str) -> Stub {
    let stub = serve().await;
    let info = format!(
        r#"{{"engine":"tensorrt-llm","version":"1.3.0rc27","dp_size":4,"tokens_per_block":32,"kv_blocks":100,
            "kv_events":true,"metrics":true,{conversations}}}"#
    );
    stub.set("/worker_info", 200, &info);
    stub
}

const STRICT: &str =
    r#""conversation_affinity":false,"rank_source":"engine","first_rank_recorded":null"#;

fn control(worker: &Worker) -> RankControl {
    *worker.capability.rank_control.get(Endpoint::Chat)
}

#[tokio::test]
async fn the_worker_says_all_that_is_needed() {
    let stub = worker(STRICT).await;
    let found = probe(&stub.config()).await.unwrap();
    assert_eq!(found.engine, EngineKind::TensorRtLlm);
    assert_eq!(found.version, "1.3.0rc27");
    assert_eq!((found.start_rank, found.dp_size), (0, 4));
    assert_eq!((found.page_size.get(), found.block_size.get()), (32, 32));
    assert_eq!(found.kv_blocks, Some(100));
    assert_eq!(found.state, TargetState::Ready);
    let url = format!("{}/kv_cache_events", stub.url);
    assert_eq!(found.kv_endpoints, KvEndpoints::Drained(url));
    assert_eq!(found.capability.header_space, HeaderSpace::Global);
    assert_eq!(control(&found), RankControl::Strict);
    assert!(!found.capability.owns_bindings);
    let responses = found.capability.rank_control.get(Endpoint::Responses);
    assert_eq!(*responses, RankControl::None);
}

#[tokio::test]
async fn who_places_conversations_decides_which_ranks_may_be_asked_for() {
    let check = async |source: &str, recorded: &str, expected| {
        let said = format!(
            r#""conversation_affinity":true,"rank_source":"{source}","first_rank_recorded":{recorded}"#
        );
        let stub = worker(&said).await;
        let found = probe(&stub.config()).await.unwrap();
        assert_eq!(control(&found), expected, "{said}");
        assert!(found.capability.owns_bindings);
    };
    check("router", "true", RankControl::FirstTurn).await;
    check("router", "false", RankControl::None).await;
    // Until it is tried.
    check("router", "null", RankControl::None).await;
    check("engine", "true", RankControl::None).await;
}

#[tokio::test]
async fn trtllm_serve_takes_no_rank_and_says_neither_ranks_nor_blocks() {
    let stub = serve().await;
    let error = async |config: &WorkerConfig| probe(config).await.unwrap_err().to_string();
    let config = stub.config();
    let expected = "worker w1 does not say its number of ranks: set `dp_size`";
    assert_eq!(error(&config).await, expected);
    let config = WorkerConfig {
        dp_size: Some(4),
        ..config
    };
    let expected = "worker w1 does not say its block size: set `block_size`";
    assert_eq!(error(&config).await, expected);
    let config = WorkerConfig {
        block_size: Some(32),
        ..config
    };
    let found = probe(&config).await.unwrap();
    assert_eq!(found.engine, EngineKind::TensorRtLlm);
    assert_eq!(found.kv_endpoints, KvEndpoints::None);
    assert_eq!(control(&found), RankControl::None);
    assert!(!found.capability.owns_bindings);

    let keeping = WorkerConfig {
        owns_bindings: Some(true),
        kv_events: Some(stub.url.to_string().parse().unwrap()),
        ..config.clone()
    };
    let found = probe(&keeping).await.unwrap();
    assert!(found.capability.owns_bindings);
    assert_eq!(control(&found), RankControl::None);
    let url = format!("{}/kv_cache_events", stub.url);
    assert_eq!(found.kv_endpoints, KvEndpoints::Drained(url));

    let streaming = WorkerConfig {
        kv_events: Some("tcp://*:5557".parse().unwrap()),
        ..config.clone()
    };
    let KvEndpoints::Zmq(endpoints) = probe(&streaming).await.unwrap().kv_endpoints else {
        panic!("its events are published");
    };
    let addresses: Vec<_> = endpoints.iter().map(|it| it.publish.as_str()).collect();
    assert_eq!(
        addresses,
        [5557, 5558, 5559, 5560].map(|port| format!("tcp://127.0.0.1:{port}"))
    );

    let steered = WorkerConfig {
        header_space: Some(HeaderSpaceName::Global),
        ..config
    };
    let expected = "worker w1 has a front end that takes no rank (trtllm-serve; the worker in deploy/trtllm does): \
        correct `header_space`";
    assert_eq!(error(&steered).await, expected);
}

#[tokio::test]
async fn the_block_size_is_found_where_trtllm_serve_has_metrics() {
    let stub = serve().await;
    let metrics = "trtllm_kv_cache_tokens_per_block{model_name=\"m\"} 64.0\n";
    stub.set("/prometheus/metrics", 200, metrics);
    let config = WorkerConfig {
        dp_size: Some(1),
        ..stub.config()
    };
    let found = probe(&config).await.unwrap();
    assert_eq!(found.block_size.get(), 64);
    // The only rank is the one that runs.
    assert_eq!(control(&found), RankControl::Strict);
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let check = async |config: WorkerConfig, expected: &str| {
        let error = probe(&config).await.unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    let stub = worker(STRICT).await;
    let owner = WorkerConfig {
        owns_bindings: Some(true),
        ..stub.config()
    };
    let expected = "worker w1 has an engine that says itself who places its conversations: correct `owns_bindings`";
    check(owner, expected).await;
    let replayed = WorkerConfig {
        kv_events: Some(stub.url.to_string().parse().unwrap()),
        kv_replay: Some("tcp://*:5657".parse().unwrap()),
        ..stub.config()
    };
    let expected = "worker w1 has no replay of events that are asked for: correct `kv_replay`";
    check(replayed, expected).await;
    let vllm = Stub::start(0, 1).await;
    let drained = WorkerConfig {
        kv_events: Some(vllm.url.to_string().parse().unwrap()),
        ..vllm.config()
    };
    let expected =
        "worker w1 has no KV events over HTTP, only at tcp://host:port: correct `kv_events`";
    check(drained, expected).await;
    let owner = WorkerConfig {
        owns_bindings: Some(false),
        ..vllm.config()
    };
    let expected =
        "worker w1 has no conversations to keep: vLLM knows of none: correct `owns_bindings`";
    check(owner, expected).await;
}

#[tokio::test]
async fn the_load_of_each_rank_is_read_from_the_worker() {
    let stub = worker(STRICT).await;
    let rank = |rank: u32| {
        format!(
            "trtllm_num_requests_running{{dp_rank=\"{rank}\"}} 3\n\
             trtllm_num_requests_waiting{{dp_rank=\"{rank}\"}} 1\n\
             trtllm_kv_cache_max_blocks{{dp_rank=\"{rank}\"}} 100\n\
             trtllm_kv_cache_used_blocks{{dp_rank=\"{rank}\"}} 25\n"
        )
    };
    stub.set("/metrics", 200, &format!("{}{}", rank(0), rank(1)));
    let running = Running::start(&stub, memory());
    let report = next_report(&running).await;
    let loads = report.ranks.iter();
    let loads: Vec<_> = loads
        .map(|it| (it.dp_rank.get(), it.running, it.waiting, it.kv_used))
        .collect();
    assert_eq!(loads, [(0, 3, 1, 0.25), (1, 3, 1, 0.25)]);
}

#[test]
fn it_is_named_in_settings_as_it_names_itself() {
    let name = serde_json::to_string(&EngineName::TensorRtLlm).unwrap();
    assert_eq!(name, "\"tensorrt-llm\"");
}
