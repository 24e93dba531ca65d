//! Requests that cannot be served, and what they are told.

use std::sync::Arc;

use bus::MemoryBus;
use contracts::topics;
use router_api::{Config, RouterApi};
use serde_json::json;
use service_kit::{Clock, Context, Health};

use crate::engine::Engine;
use crate::world::{World, config};

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_shape_that_clients_know() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let check = async |path: &str, body: &str, status: u16, message: &str, param, code| {
        let answer = world.client.post(path, &[], body).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {body}");
        let error = &answer.json()["error"];
        assert_eq!(error["message"], message);
        assert_eq!(error["param"], param);
        assert_eq!(error["code"], code);
        assert!(error["type"].is_string());
    };
    let path = "/v1/completions";
    let none = json!(null);
    let unknown = "the model \"x\" does not exist; there is m";
    check(
        path,
        r#"{"model":"x"}"#,
        404,
        unknown,
        json!("model"),
        json!("model_not_found"),
    )
    .await;
    let no_model = "the request names no model";
    check(path, "{}", 400, no_model, json!("model"), none.clone()).await;
    let broken = "read the request body: EOF while parsing an object at line 1 column 1";
    check(path, "{", 400, broken, none.clone(), none.clone()).await;
    let list = "the request body is not a JSON object";
    check(path, r#"["m"]"#, 400, list, none.clone(), none.clone()).await;
    let nothing =
        "read the request body: invalid type: null, expected a JSON object at line 1 column 4";
    check(path, "null", 400, nothing, none.clone(), none.clone()).await;
    let stream = "read the request body: invalid type: string \"yes\", expected a boolean at line 1 column 27";
    let body = r#"{"model":"m","stream":"yes"}"#;
    check(path, body, 400, stream, none.clone(), none.clone()).await;
    let tokens =
        "read prompt as token ids: invalid value: integer `-1`, expected u32 at line 1 column 5";
    let body = r#"{"model":"m","prompt":[1,-1]}"#;
    check(path, body, 400, tokens, json!("prompt"), none.clone()).await;
    let nowhere = "there is no POST /v2/x";
    check(
        "/v2/x",
        "{}",
        404,
        nowhere,
        none.clone(),
        json!("not_found"),
    )
    .await;
    let method = "/v1/models does not take POST";
    check(
        "/v1/models",
        "{}",
        405,
        method,
        none,
        json!("method_not_allowed"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_wrote_is_quoted_in_part_however_long_it_is() {
    let engine = Engine::start().await;
    let config = Config {
        allow_client_target: true,
        ..config()
    };
    let world = World::with(config, &[&engine]).await;
    let long = "é".repeat(500_000);
    let check = async |body: String, begin: &str, end: &str| {
        let answer = world.client.post("/v1/completions", &[], &body).await;
        let error = answer.error();
        assert!(error.len() <= 400, "{} bytes", error.len());
        assert!(error.starts_with(begin) && error.ends_with(end), "{error}");
        assert!(error.contains("éé ... "), "{error}");
    };
    let model = format!(r#"{{"model":"{long}"}}"#);
    check(model, "the model \"é", "é\" does not exist; there is m").await;
    let stream = format!(r#"{{"model":"m","stream":"{long}"}}"#);
    let begin = "read the request body: invalid type: string \"é";
    let end = "é\", expected a boolean at line 1 column 1000024";
    check(stream, begin, end).await;
    let prompt = format!(r#"{{"model":"m","prompt":[1,"{long}"]}}"#);
    let begin = "read prompt as token ids: invalid type: string \"é";
    let end = "é\", expected u32 at line 1 column 1000005";
    check(prompt, begin, end).await;
    let rank = format!(r#"{{"model":"m","routed_dp_rank":"{long}"}}"#);
    check(rank, "\"\\\"é", "é\\\"\" is not a rank").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_any_worker_is_found_a_model_is_not_said_to_be_missing() {
    let world = World::before(&[]).await;

    let answer = world
        .client
        .post("/v1/completions", &[], r#"{"model":"m","prompt":[1]}"#)
        .await;

    assert_eq!(answer.status.as_u16(), 503);
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.json()["error"]["code"], "no_target");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_long_is_told_its_limit() {
    let engine = Engine::start().await;
    let config = Config {
        max_body: 1000,
        ..config()
    };
    let world = World::with(config, &[&engine]).await;
    let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(5_000_000));
    let answer = world.client.post("/v1/completions", &[], &body).await;
    assert_eq!(answer.status.as_u16(), 413);
    assert_eq!(
        answer.error(),
        "the request body of 5000025 bytes is longer than the limit of 1000 bytes (`max_body`)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_conversation_id_is_refused_where_it_is_ours_and_skipped_elsewhere() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m","prompt":[1],"session_id":7}"#;
    let headers = [("x-rankway-conversation", "")];
    let answer = world.client.post("/v1/completions", &headers, body).await;
    assert_eq!(answer.status.as_u16(), 400);
    let refused = "x-rankway-conversation is not a conversation id: an id cannot be empty";
    assert_eq!(answer.error(), refused);
    let engine_side = async { engine.next().await.answer(200, "{}") };
    let headers = [("x-session-id", " ")];
    let client_side = world.client.post("/v1/completions", &headers, body);
    let (answer, ()) = tokio::join!(client_side, engine_side);
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(world.gauge("rankway_conversation_ids_skipped_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_chooses_its_target_only_where_it_may() {
    let mut engine = Engine::start().await;
    let body = r#"{"model":"m","prompt":[1]}"#;
    let world = World::before(&[&engine]).await;
    let headers = [("x-rankway-dp-rank", "9"), ("x-data-parallel-rank", "9")];
    let engine_side = async {
        let arrival = engine.next().await;
        assert_ne!(arrival.rank(), Some("9"));
        arrival.answer(200, "{}");
    };
    let client_side = world.client.post("/v1/completions", &headers, body);
    tokio::join!(client_side, engine_side);
    assert_eq!(world.gauge("rankway_client_targets_removed_total"), 1.0);
    drop(world);

    let config = Config {
        allow_client_target: true,
        ..config()
    };
    let world = World::with(config, &[&engine]).await;
    for rank in ["0", "1"] {
        let headers = [("x-rankway-worker", "w1"), ("x-rankway-dp-rank", rank)];
        let engine_side = async {
            let arrival = engine.next().await;
            assert_eq!(arrival.rank(), Some(rank));
            arrival.answer(200, "{}");
        };
        let client_side = world.client.post("/v1/completions", &headers, body);
        let (answer, ()) = tokio::join!(client_side, engine_side);
        assert_eq!(answer.header("x-rankway-dp-rank"), Some(rank));
    }
    let headers = [("x-rankway-dp-rank", "2")];
    let answer = world.client.post("/v1/completions", &headers, body).await;
    assert_eq!(answer.status.as_u16(), 400);
    let valid = "no such target: choose one of w1#1/0, w1#1/1";
    assert_eq!(answer.error(), valid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_without_workers_is_alive_and_not_ready() {
    let world = World::before(&[]).await;
    assert_eq!(world.client.get("/liveness").await.status.as_u16(), 200);
    assert_eq!(world.client.get("/health").await.status.as_u16(), 200);
    let ready = world.client.get("/readiness").await;
    assert_eq!(ready.status.as_u16(), 503);
    assert!(ready.json()["missing"]["router"].is_string());
    let models = world.client.get("/v1/models").await.json();
    assert_eq!(models["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_serves_is_listed_and_counted() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    assert_eq!(world.client.get("/readiness").await.status.as_u16(), 200);
    let models = world.client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "m");
    let engine_side = async { engine.next().await.answer(200, "{}") };
    let body = r#"{"model":"m","prompt":[1]}"#;
    tokio::join!(world.client.post("/v1/completions", &[], body), engine_side);
    let unknown = r#"{"model":"made up","prompt":[1]}"#;
    world.client.post("/v1/completions", &[], unknown).await;
    let metrics = world.client.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        r#"rankway_requests_total{model="m",status="200"} 1"#,
        r#"rankway_requests_total{model="unknown",status="404"} 1"#,
        "rankway_added_latency_seconds_count 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(!metrics.contains("made up"));
    let openapi = world.client.get("/openapi.json").await.json();
    assert!(openapi["paths"]["/v1/route"].is_object());
    assert!(openapi["paths"]["/v1/outcome"].is_object());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_named_with_the_setting_to_change() {
    let world = World::before(&[]).await;
    let bus = Arc::new(MemoryBus::new(&topics::LAYOUT));
    let context = Context {
        registry: prometheus::Registry::new(),
        health: Health::default(),
        clock: Clock::system(),
    };
    let config = Config {
        listen: world.handle.address(),
        ..Config::default()
    };
    let adapter = worker_adapter::Config::default();
    let adapter =
        worker_adapter::WorkerAdapter::new(adapter, bus.clone(), context.clone()).unwrap();
    let router = RouterApi::bind(
        config,
        bus,
        world.index.clone(),
        world.affinity.clone(),
        adapter.dispatch(),
        context,
        "router-2".parse().unwrap(),
    );
    let error = router.await.err().unwrap().to_string();
    let address = world.handle.address();
    assert_eq!(
        error,
        format!("listen on {address} (set router.listen to another address)")
    );
}
