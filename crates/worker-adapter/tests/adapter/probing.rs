//! What is found out about an engine, and what is asked of the operator instead.

use domain::{Endpoint, HeaderSpace, KvEndpoints, RankControl, RankEndpoint, TargetState};
use worker_adapter::{Config, EngineUrl, HeaderSpaceName, WorkerConfig, probe};

use crate::stub::Stub;

async fn refusal(config: &WorkerConfig) -> String {
    probe(config).await.unwrap_err().to_string()
}

#[tokio::test]
async fn an_engine_is_described_by_itself() {
    let stub = Stub::start(0, 2).await;
    let worker = probe(&stub.config()).await.unwrap();
    assert_eq!(worker.model.as_str(), "m");
    assert_eq!(worker.version, "0.33.0");
    assert_eq!((worker.start_rank, worker.dp_size), (0, 2));
    assert_eq!(worker.block_size.get(), 16);
    // What vLLM lists is the sum over its ranks.
    assert_eq!(worker.kv_blocks, Some(50));
    assert_eq!(worker.state, TargetState::Ready);
    assert_eq!(worker.capability.header_space, HeaderSpace::Global);
    let control = worker.capability.rank_control;
    assert_eq!(*control.get(Endpoint::Chat), RankControl::Strict);
    let KvEndpoints::Zmq(endpoints) = worker.kv_endpoints else {
        panic!("it lists its event sources");
    };
    let second = RankEndpoint {
        dp_rank: domain::DpRank::new(1),
        publish: "tcp://127.0.0.1:5558".to_owned(),
        replay: Some("tcp://127.0.0.1:5658".to_owned()),
        topic: "kv".to_owned(),
    };
    assert_eq!(endpoints[1], second);
    let unnamed = WorkerConfig::at(stub.url.clone());
    let id = probe(&unnamed).await.unwrap().id;
    assert_eq!(format!("http://{id}"), stub.url.to_string());
    stub.stop().await;
}

#[tokio::test]
async fn what_an_old_engine_does_not_list_is_computed_from_the_settings() {
    let stub = Stub::start(0, 2).await;
    stub.forget("/kv_event_sources");
    stub.forget("/version");
    let config = WorkerConfig {
        kv_events: Some("tcp://*:7000".parse().unwrap()),
        kv_replay: Some("tcp://*:7100".parse().unwrap()),
        ..stub.config()
    };
    let worker = probe(&config).await.unwrap();
    assert_eq!(worker.version, "");
    let KvEndpoints::Zmq(endpoints) = worker.kv_endpoints else {
        panic!("they are set");
    };
    assert_eq!(endpoints[1].publish, "tcp://127.0.0.1:7001");
    assert_eq!(endpoints[1].replay.as_deref(), Some("tcp://127.0.0.1:7101"));

    let adjacent = WorkerConfig {
        kv_replay: Some("tcp://*:7001".parse().unwrap()),
        ..config
    };
    assert!(refusal(&adjacent).await.contains("correct `kv_events`"));
}

#[tokio::test]
async fn what_nobody_says_is_an_error_that_names_the_key() {
    let stub = Stub::start(0, 2).await;
    stub.set("/metrics", 200, "");
    let missing = "worker w1 does not say its block size: set `block_size`";
    assert_eq!(refusal(&stub.config()).await, missing);
    stub.forget("/kv_event_sources");
    let missing = "worker w1 does not say its number of ranks: set `dp_size`";
    assert_eq!(refusal(&stub.config()).await, missing);
    let config = WorkerConfig {
        dp_size: Some(2),
        block_size: Some(16),
        ..stub.config()
    };
    assert_eq!(probe(&config).await.unwrap().dp_size, 2);
}

#[tokio::test]
async fn what_contradicts_the_engine_is_an_error_that_names_the_key() {
    let stub = Stub::start(0, 2).await;
    let config = WorkerConfig {
        dp_size: Some(4),
        ..stub.config()
    };
    let mismatch = "worker w1 has dp_size 2, not 4: correct `dp_size`";
    assert_eq!(refusal(&config).await, mismatch);
    let config = WorkerConfig {
        model: Some("other".parse().unwrap()),
        ..stub.config()
    };
    let mismatch = "worker w1 has no model other, only m: correct `model`";
    assert_eq!(refusal(&config).await, mismatch);
}

#[tokio::test]
async fn a_front_end_whose_numbering_is_ambiguous_must_be_told() {
    let stub = Stub::start(2, 2).await;
    assert!(
        refusal(&stub.config())
            .await
            .ends_with("set `header_space`")
    );
    let config = WorkerConfig {
        header_space: Some(HeaderSpaceName::Local),
        ..stub.config()
    };
    let worker = probe(&config).await.unwrap();
    assert_eq!(worker.start_rank, 2);
    assert_eq!(worker.capability.header_space, HeaderSpace::Local);
    // With one rank there is nothing to number.
    let single = Stub::start(3, 1).await;
    let worker = probe(&single.config()).await.unwrap();
    assert_eq!(worker.capability.header_space, HeaderSpace::None);
    let control = worker.capability.rank_control;
    assert_eq!(*control.get(Endpoint::Chat), RankControl::Strict);
}

#[tokio::test]
async fn an_engine_that_is_not_healthy_yet_warms_up_and_nobody_is_unreachable() {
    let stub = Stub::start(0, 1).await;
    stub.set("/health", 503, "");
    let worker = probe(&stub.config()).await.unwrap();
    assert_eq!(worker.state, TargetState::Warming);
    let config = stub.config();
    let url = stub.url.clone();
    stub.stop().await;
    let expected = format!("no engine answers at {url}: start it, or correct `url`");
    assert_eq!(refusal(&config).await, expected);
}

#[tokio::test]
async fn something_else_than_an_engine_is_told_apart() {
    let stub = Stub::start(0, 1).await;
    stub.forget("/v1/models");
    let expected = format!(
        "{}/v1/models answers 404: is vLLM's HTTP API there?",
        stub.url
    );
    assert_eq!(refusal(&stub.config()).await, expected);
    stub.set("/v1/models", 200, "<html>");
    let expected = format!("{}/v1/models answers what vLLM does not", stub.url);
    assert_eq!(refusal(&stub.config()).await, expected);
}

#[test]
fn a_url_that_cannot_be_used_is_answered_with_one_that_can() {
    let check = |text: &str, expected: &str| {
        let error = text.parse::<EngineUrl>().unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    check(
        "localhost:8000",
        "\"localhost:8000\" is not an address: write http://localhost:8000",
    );
    check(
        "https://a:8000",
        "\"https://a:8000\" asks for TLS, which is not spoken to engines: write http://host:port",
    );
    for text in [
        "http://a",
        "http://a:0",
        "http://a:99999",
        "http://a:1/v1",
        "",
        "http://*:80",
    ] {
        let expected = format!(
            "{text:?} is not an address: write http://host:port, such as http://127.0.0.1:8000"
        );
        check(text, &expected);
    }
    let url: EngineUrl = "http://[::1]:8000/".parse().unwrap();
    assert_eq!(url.to_string(), "http://[::1]:8000");
    let id = WorkerConfig::at(url).worker_id().unwrap();
    assert_eq!(id.as_str(), "::1:8000");
}

#[test]
fn settings_say_which_key_is_wrong() {
    let read = |text: &str| serde_json::from_str::<Config>(text);
    let text = r#"{"workers":[{"url":"http://a:1","header_space":"local","id":"w","kv_events":"tcp://*:1"}]}"#;
    let config = read(text).unwrap();
    assert_eq!(config.workers[0].header_space, Some(HeaderSpaceName::Local));
    let written = serde_json::to_string(&config).unwrap();
    assert_eq!(read(&written).unwrap(), config);
    for (text, expected) in [
        (r#"{"workers":[{"url":"a:1"}]}"#, "write http://a:1"),
        (
            r#"{"workers":[{"url":"http://a:1","dpsize":2}]}"#,
            "unknown field `dpsize`",
        ),
        (
            r#"{"workers":[{"url":"http://a:1","id":"a b"}]}"#,
            "an id cannot contain ' '",
        ),
        (
            r#"{"workers":[{"url":"http://a:1","engine":"x"}]}"#,
            "unknown variant `x`",
        ),
        (r#"{"workers":[{"id":"a"}]}"#, "missing field `url`"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
