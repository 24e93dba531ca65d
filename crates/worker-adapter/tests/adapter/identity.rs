//! What is told of an engine that is known though not all that it says can be read, or that is not what it was said to
//! be; and how much of its own text is repeated.

use std::error::Error;

use domain::EngineKind;
use serde_json::{Value, json};
use worker_adapter::{EngineName, WorkerConfig, probe};

use crate::stub::Stub;

/// More than an error repeats of an engine's text, and some words of ours.
const SHORT: usize = 512;

fn sglang() -> Value {
    json!({
        "version": "0.5.23", "model_path": "m", "dp_size": 2, "attn_dp_size": 1, "tp_size": 1, "nnodes": 1,
        "page_size": 16, "max_total_num_tokens": 32_768,
        "kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5597, "dp_size": 2},
    })
}

const MODELS: &str = r#"{"object":"list","data":[{"id":"m"}]}"#;
const PROPS: &str = r#"{"default_generation_settings":{"n_ctx":4096},"total_slots":2}"#;

async fn started(info: &Value) -> Stub {
    let stub = Stub::silent().await;
    stub.set("/server_info", 200, &info.to_string());
    stub.set("/v1/models", 200, MODELS);
    stub.set("/health", 200, "");
    stub
}

/// The error with all its causes.
async fn refusal(config: &WorkerConfig) -> String {
    let error = probe(config).await.unwrap_err();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

#[tokio::test]
async fn of_an_sglang_whose_answer_cannot_be_read_the_field_is_named() {
    let check = async |path: &str, value: Value, named: &str| {
        let mut info = sglang();
        *info.pointer_mut(path).unwrap() = value;
        let stub = started(&info).await;
        let error = refusal(&stub.config()).await;
        let url = &stub.url;
        let begins = format!("{url}/server_info answers what SGLang does not: read its {named}");
        assert!(error.starts_with(&begins), "{error}");
    };
    check("/kv_events", json!(7), "kv_events: ").await;
    check("/page_size", json!(1e12), "page_size: ").await;
    check("/max_total_num_tokens", json!(-5), "max_total_num_tokens: ").await;
    check("/version", json!(null), "version: ").await;
    check("/model_path", json!({}), "model_path: ").await;
    check("/nnodes", json!("x"), "nnodes: ").await;
    check("/attn_dp_size", json!("4"), "attn_dp_size: ").await;
    let port = "/kv_events/endpoint_port_base";
    check(port, json!(70_000), "kv_events: ").await;
}

#[tokio::test]
async fn ranks_that_contradict_those_of_the_events_are_named_with_them() {
    let mut info = sglang();
    info["kv_events"]["dp_size"] = json!(4);
    let stub = started(&info).await;
    let error = refusal(&stub.config()).await;
    let said = "kv_events.dp_size is 4, dp_size 2 and attn_dp_size 1";
    assert!(error.contains(said), "{error}");
}

#[tokio::test]
async fn an_engine_that_is_not_what_it_was_said_to_be_is_told_by_its_name() {
    let said = |stub: &Stub, engine| WorkerConfig {
        engine: Some(engine),
        dp_size: Some(2),
        block_size: Some(16),
        ..stub.config()
    };
    let check = async |stub: &Stub, told: &str, all: [EngineName; 3]| {
        for engine in all {
            let error = refusal(&said(stub, engine)).await;
            let expected =
                format!("worker w1 has {told} at its url, not {engine}: correct `engine`");
            assert_eq!(error, expected);
        }
    };
    use EngineName::{LlamaCpp, Sglang, TensorRtLlm, Vllm};
    let stub = started(&sglang()).await;
    stub.set("/metrics", 200, "");
    check(&stub, "SGLang", [Vllm, LlamaCpp, TensorRtLlm]).await;
    assert_eq!(
        probe(&said(&stub, Sglang)).await.unwrap().engine,
        EngineKind::Sglang
    );
    stub.forget("/server_info");
    stub.set("/props", 200, PROPS);
    check(&stub, "llama.cpp", [Vllm, Sglang, TensorRtLlm]).await;
}

#[tokio::test]
async fn a_llama_cpp_whose_answer_cannot_be_read_is_not_taken_for_another() {
    for props in [
        r#"{"default_generation_settings":{"n_ctx":"x"},"total_slots":2}"#,
        r#"{"total_slots":2}"#,
        r#"{"default_generation_settings":{"n_ctx":4096},"total_slots":0}"#,
    ] {
        let stub = Stub::silent().await;
        stub.set("/props", 200, props);
        let error = refusal(&stub.config()).await;
        let begins = format!("{}/props answers what llama.cpp does not: ", stub.url);
        assert!(error.starts_with(&begins), "{error}");
    }
}

#[tokio::test]
async fn of_an_engines_own_text_only_the_beginning_is_repeated() {
    let long = "é".repeat(1 << 19);
    let brief = |error: &str| {
        let beginning = error.get(..200).unwrap_or(error);
        assert!(error.len() <= SHORT, "{} bytes: {beginning}", error.len());
        assert!(error.contains("éé"), "{error}");
    };
    let vllm = Stub::start(0, 2).await;
    vllm.set("/version", 200, &json!({"version": long}).to_string());
    let worker = probe(&vllm.config()).await.unwrap();
    brief(&worker.version);
    assert!(worker.version.len() <= 256 + "…".len());
    for sources in [
        json!(long),
        json!({"0": long}),
        json!({"0": {"endpoint": format!("tcp://{long}:1")}}),
        json!({"0": {"endpoint": "tcp://*:1", "replay_endpoint": long}}),
        json!({"0": {"endpoint": "tcp://*:1", "topic": long}}),
    ] {
        vllm.set("/kv_event_sources", 200, &sources.to_string());
        brief(&refusal(&vllm.config()).await);
    }
    vllm.set("/v1/models", 200, &json!({"data": long}).to_string());
    brief(&refusal(&vllm.config()).await);

    let many: Vec<Value> = (0..4096)
        .map(|it| json!({"id": format!("é{it}éé")}))
        .collect();
    vllm.set("/v1/models", 200, &json!({"data": many}).to_string());
    let other = WorkerConfig {
        model: Some("other".parse().unwrap()),
        ..vllm.config()
    };
    brief(&refusal(&other).await);

    for (key, value) in [
        ("page_size", long.clone()),
        ("version", format!("0.5.14{long}")),
    ] {
        let mut info = sglang();
        info[key] = json!(value);
        let stub = started(&info).await;
        brief(&refusal(&stub.config()).await);
    }
}

/// Before 0.5.6 it has another path, which nobody else answers; its events cannot be used, and that is what is told.
#[tokio::test]
async fn an_old_sglang_is_told_from_vllm_by_the_old_name_of_its_path() {
    let mut info = sglang();
    info["version"] = json!("0.5.5");
    let stub = Stub::silent().await;
    stub.set("/get_server_info", 200, &info.to_string());
    stub.set("/v1/models", 200, MODELS);
    stub.set("/health", 200, "");
    let error = refusal(&stub.config()).await;
    assert!(
        error.starts_with("worker w1 runs SGLang version 0.5.5"),
        "{error}"
    );
}
