//! What reaches the engine, what comes back, and when.

use affinity::BindingState;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::client::chunk;
use crate::engine::Engine;
use crate::world::{World, config};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_and_its_answer_pass_byte_for_byte() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body =
        "{\"model\": \"m\",\n \"messages\":[ ], \"unknown\" :{\"b\":1.0,\"a\":[1e3]},\"n\":1 }\n";
    let answer = "{ \"choices\" : [ ], \"usage\":{\"prompt_tokens\":3}, \"own\":1.50 }\n";
    let headers = [("x-custom", "kept"), ("authorization", "Bearer key")];
    let path = format!("{CHAT}?debug=1");
    let client_side = world.client.post(&path, &headers, body);
    let engine_side = async {
        let arrival = engine.next().await;
        assert_eq!(arrival.path, path);
        assert_eq!(arrival.body, body);
        assert_eq!(arrival.headers["x-custom"], "kept");
        assert_eq!(arrival.headers["authorization"], "Bearer key");
        assert!(arrival.rank().is_some(), "the rank is strict");
        arrival.answer(200, answer);
    };
    let (response, ()) = tokio::join!(client_side, engine_side);
    assert_eq!(response.status, StatusCode::OK);
    assert_eq!(response.body, answer);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-rankway-worker"), Some("w1"));
    assert_eq!(response.header("x-rankway-overlap-tokens"), Some("0"));
    let id = response.header("x-rankway-decision").unwrap();
    let explained = world.admin(&format!("decisions/{id}")).await;
    assert_eq!(explained["outcome"]["status"], "served");
    assert_eq!(explained["degraded"][0], "no_tokens", "nobody tokenised it");
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_passed_on_while_the_engine_holds_the_rest() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"stream":true}"#;
    let client = world.client.clone();
    let client_side = client.open("/v1/completions", &[], body);
    let engine_side = async {
        let arrival = engine.next().await;
        let expected = r#"{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"stream":true,"stream_options":{"include_usage":true}}"#;
        assert_eq!(arrival.body, expected);
        let stream = arrival.stream();
        stream
            .send("data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
            .await;
        stream
    };
    let (mut response, stream) = tokio::join!(client_side, engine_side);
    let first = chunk(response.body_mut()).await.unwrap();
    assert_eq!(first, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
    let usage =
        r#"{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}"#;
    stream
        .send(&format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n"))
        .await;
    stream.send("data: [DONE]\n\n").await;
    drop(stream);
    let last = chunk(response.body_mut()).await.unwrap();
    assert_eq!(
        last, "data: [DONE]\n\n",
        "the usage frame was not asked for"
    );
    assert_eq!(chunk(response.body_mut()).await, None);

    let explained = world.admin("decisions/last").await;
    assert_eq!(explained["outcome"]["cached_tokens"], 8);
    assert_eq!(explained["waterfall"]["levels"]["realised"], 8);
    assert_eq!(explained["waterfall"]["lost"]["sum"], 1);
    assert_eq!(world.handle.totals().measured.requests, 1);
    let waterfall = world.admin("waterfall").await;
    assert_eq!(waterfall["measured"]["levels"]["isl"], 9);
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_cached_tokens_than_the_prompt_has_are_not_believed() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m","prompt":[1,2,3,4,5]}"#;
    let mut cached = async |prompt: u32, tokens: u64| {
        let details = json!({"cached_tokens": tokens});
        let usage = json!({
            "prompt_tokens": prompt, "completion_tokens": 1, "prompt_tokens_details": details
        });
        let answer = json!({"usage": usage}).to_string();
        let engine_side = async { engine.next().await.answer(200, answer) };
        tokio::join!(world.client.post("/v1/completions", &[], body), engine_side);
        let decision = world.admin("decisions/last").await;
        assert_eq!(decision["outcome"]["prompt_tokens"], prompt);
        let realised = &decision["waterfall"]["levels"]["realised"];
        (
            decision["outcome"]["cached_tokens"].clone(),
            realised.clone(),
        )
    };
    let unknown = (Value::Null, Value::Null);
    assert_eq!(cached(5, 1_000_000_000).await, unknown);
    assert_eq!(cached(5, 6).await, unknown);
    assert_eq!(world.gauge("rankway_cached_tokens_disbelieved_total"), 2.0);
    // The engine counts what its template adds, too.
    assert_eq!(cached(13, 12).await, (json!(12), json!(12)));
    assert_eq!(world.gauge("rankway_cached_tokens_disbelieved_total"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_first_byte_is_not_worked_for() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m","prompt":[1,2,3,4,5],"session_id":"c"}"#;
    let client = world.client.clone();
    let mut leaving = tokio::task::JoinSet::new();
    leaving.spawn(async move { client.open("/v1/completions", &[], body).await.status() });
    let arrival = engine.next().await;
    assert_eq!(world.gauge("rankway_target_inflight"), 1.0);
    leaving.abort_all();
    arrival.abandoned().await;
    world.until_nothing_is_left().await;
    // Nothing was served there, so the conversation is free again.
    world
        .until(async || world.affinity.list(10).await.unwrap().is_empty())
        .await;
    let explained = world.admin("decisions/last").await;
    assert_eq!(explained["outcome"]["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_stops_the_engine() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m","prompt":[1,2,3,4,5],"stream":true,"session_id":"c"}"#;
    let client_side = world.client.open("/v1/completions", &[], body);
    let engine_side = async {
        let stream = engine.next().await.stream();
        stream.send("data: 1\n\n").await;
        stream
    };
    let (mut response, stream) = tokio::join!(client_side, engine_side);
    chunk(response.body_mut()).await.unwrap();
    world
        .until(async || {
            let bound = world.affinity.list(10).await.unwrap();
            bound
                .iter()
                .any(|it| it.binding.state == BindingState::Confirmed)
        })
        .await;
    drop(response);
    stream.abandoned().await;
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_breaks_off_ends_the_stream_with_an_error_event() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m","prompt":[1],"stream":true}"#;
    let client_side = world.client.open("/v1/completions", &[], body);
    let engine_side = async {
        let stream = engine.next().await.stream();
        stream.send("data: 1\n\n").await;
        stream
    };
    let (mut response, stream) = tokio::join!(client_side, engine_side);
    assert_eq!(chunk(response.body_mut()).await.unwrap(), "data: 1\n\n");
    stream.break_off().await;
    let last = chunk(response.body_mut()).await.unwrap();
    let event = last.strip_prefix(b"data: ").unwrap();
    let event: serde_json::Value = serde_json::from_slice(event).unwrap();
    assert_eq!(event["error"]["code"], "upstream_failed");
    assert_eq!(chunk(response.body_mut()).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_breaks_off_before_its_first_byte_is_left_for_another() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m","prompt":[1],"stream":true}"#;
    let client_side = world.client.post("/v1/completions", &[], body);
    let engine_side = async {
        let arrival = engine.next().await;
        let first = arrival.rank().unwrap().to_owned();
        arrival.stream().break_off().await;
        let arrival = engine.next().await;
        assert_ne!(arrival.rank(), Some(first.as_str()));
        arrival.stream().send("data: [DONE]\n\n").await;
    };
    let (response, ()) = tokio::join!(client_side, engine_side);
    assert_eq!(response.body, "data: [DONE]\n\n");
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_before_the_first_byte_is_tried_elsewhere() {
    let mut first = Engine::start().await;
    let mut second = Engine::start().await;
    let world = World::before(&[&first, &second]).await;
    let body = r#"{"model":"m","prompt":[1,2,3,4,5],"session_id":"c"}"#;
    let engines = async {
        let mut refusals = 0;
        loop {
            let arrival = tokio::select! {
                arrival = first.next() => arrival,
                arrival = second.next() => arrival,
            };
            match refusals {
                0 => arrival.answer(503, "busy"),
                1 => arrival.answer(502, "broken"),
                _ => return arrival.answer(200, "{}"),
            }
            refusals += 1;
        }
    };
    let (response, ()) = tokio::join!(world.client.post("/v1/completions", &[], body), engines);
    assert_eq!(
        (response.status, &response.body),
        (StatusCode::OK, &Bytes::from("{}"))
    );
    let id = response.header("x-rankway-decision").unwrap();
    let explained = world.admin(&format!("decisions/{id}")).await;
    let before = explained["retry_of"].as_str().unwrap();
    let before = world.admin(&format!("decisions/{before}")).await;
    assert_eq!(before["outcome"]["status"], "failed");
    assert_ne!(before["target"], explained["target"]);
    world.until_nothing_is_left().await;
    world
        .until(async || {
            let bound = world.affinity.list(10).await.unwrap();
            bound.len() == 1 && bound[0].binding.target.to_string() == explained["target"]
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_a_retry_leaves_no_binding() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m","prompt":[1,2,3,4,5],"session_id":"c"}"#;
    let client = world.client.clone();
    let mut leaving = tokio::task::JoinSet::new();
    leaving.spawn(async move { client.open("/v1/completions", &[], body).await.status() });
    engine.next().await.answer(503, "busy");
    let second = engine.next().await;
    leaving.abort_all();
    second.abandoned().await;
    world.until_nothing_is_left().await;
    world
        .until(async || world.affinity.list(10).await.unwrap().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_tried_elsewhere_and_no_engine_at_all_is_said() {
    let first = Engine::start().await;
    let mut second = Engine::start().await;
    let world = World::before(&[&first, &second]).await;
    drop(first);
    let body = r#"{"model":"m","prompt":[1,2,3,4,5]}"#;
    for _ in 0..4 {
        let engine = async { second.next().await.answer(200, "{}") };
        let (response, ()) = tokio::join!(world.client.post("/v1/completions", &[], body), engine);
        assert_eq!(response.header("x-rankway-worker"), Some("w2"));
    }
    drop(second);
    let response = world.client.post("/v1/completions", &[], body).await;
    assert!(response.status.is_server_error());
    assert!(response.headers.contains_key("retry-after"));
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_says_of_a_request_is_passed_on_and_not_retried() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    for status in [400, 404, 429, 500] {
        let body = r#"{"model":"m","prompt":[1]}"#;
        let said = format!(r#"{{"error":{{"message":"of {status}"}}}}"#);
        let engine_side = async { engine.next().await.answer(status, said.clone()) };
        let (response, ()) =
            tokio::join!(world.client.post("/v1/completions", &[], body), engine_side);
        assert_eq!(response.status.as_u16(), status);
        assert_eq!(response.body, said);
    }
    assert_eq!(world.gauge("rankway_retries_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_streams_end() {
    let mut engine = Engine::start().await;
    let mut world = World::with(config(), &[&engine]).await;
    let body = r#"{"model":"m","prompt":[1],"stream":true}"#;
    let client_side = world.client.open("/v1/completions", &[], body);
    let engine_side = async {
        let stream = engine.next().await.stream();
        stream.send("data: 1\n\n").await;
        stream
    };
    let (mut response, stream) = tokio::join!(client_side, engine_side);
    chunk(response.body_mut()).await.unwrap();
    world.shutdown.cancel();
    stream.send("data: 2\n\n").await;
    assert_eq!(chunk(response.body_mut()).await.unwrap(), "data: 2\n\n");
    drop(stream);
    assert_eq!(chunk(response.body_mut()).await, None);
    let ended = crate::soon(world.tasks.join_next()).await.unwrap();
    ended.unwrap().unwrap();
}
