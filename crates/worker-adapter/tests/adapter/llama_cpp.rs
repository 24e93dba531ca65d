//! What is found out about a llama.cpp.

use domain::{Endpoint, EngineKind, KvEndpoints, RankControl, TargetState, Worker};
use worker_adapter::{WorkerConfig, probe};

use crate::running::{Running, memory};
use crate::stub::Stub;

const PROPS: &str = r#"{"default_generation_settings":{"params":{},"n_ctx":4096},"total_slots":2,
    "model_alias":"m","model_path":"m.gguf","build_info":"b11549-0fd7ca7"}"#;
const LOADING: &str =
    r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;

async fn started() -> Stub {
    let stub = Stub::silent().await;
    loaded(&stub);
    stub
}

fn loaded(stub: &Stub) {
    stub.forget("/server_info");
    stub.set("/props", 200, PROPS);
    stub.set("/health", 200, r#"{"status":"ok"}"#);
    stub.set(
        "/v1/models",
        200,
        r#"{"object":"list","data":[{"id":"m"}]}"#,
    );
}

#[tokio::test]
async fn it_is_found_to_be_one_and_its_slots_are_its_ranks() {
    let stub = started().await;
    let worker = probe(&stub.config()).await.unwrap();
    assert_eq!(worker.engine, EngineKind::LlamaCpp);
    assert_eq!(worker.version, "b11549-0fd7ca7");
    assert_eq!((worker.start_rank, worker.dp_size), (0, 2));
    assert_eq!((worker.page_size.get(), worker.block_size.get()), (32, 32));
    assert_eq!(worker.kv_blocks, Some(128));
    assert_eq!(worker.kv_endpoints, KvEndpoints::None);
    assert_eq!(worker.state, TargetState::Ready);
    let control = |endpoint| *worker.capability.rank_control.get(endpoint);
    assert_eq!(control(Endpoint::Completions), RankControl::Strict);
    assert_eq!(control(Endpoint::Messages), RankControl::None);

    let set = WorkerConfig {
        block_size: Some(64),
        ..stub.config()
    };
    let worker = probe(&set).await.unwrap();
    assert_eq!((worker.block_size.get(), worker.kv_blocks), (64, Some(64)));
}

#[tokio::test]
async fn it_has_no_events_to_be_pointed_to() {
    let stub = started().await;
    let config = WorkerConfig {
        kv_events: Some("tcp://*:5557".parse().unwrap()),
        ..stub.config()
    };
    let error = probe(&config).await.unwrap_err().to_string();
    let expected = "worker w1 has no KV events: llama.cpp announces none: correct `kv_events`";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn it_says_nothing_until_its_model_is_loaded_and_serves_then() {
    let stub = Stub::silent().await;
    for path in ["/server_info", "/props", "/health", "/v1/models"] {
        stub.set(path, 503, LOADING);
    }
    let error = probe(&stub.config()).await.unwrap_err().to_string();
    let expected = format!("the engine at {} is loading its model", stub.url);
    assert_eq!(error, expected);
    let running = Running::start(&stub, memory());
    loaded(&stub);
    stub.set(
        "/slots",
        200,
        r#"[{"id":0,"n_ctx":4096,"is_processing":false},{"id":1,"n_ctx":4096,"is_processing":true}]"#,
    );
    let ready = |worker: Option<&Worker>| {
        worker.is_some_and(|it| it.state == TargetState::Ready && it.engine == EngineKind::LlamaCpp)
    };
    running.until(ready).await;
}
