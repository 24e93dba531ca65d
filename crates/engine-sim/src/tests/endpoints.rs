//! Endpoints beyond chat and text completions, and what releases differ in.

use axum::http::StatusCode;
use domain::Tokens;
use engine_wire::parse_usage;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::client::{Sim, config, words};
use crate::{BindError, Config, EngineSim};

#[tokio::test]
async fn responses_and_messages_count_and_cache_as_chat_does() {
    let sim = Sim::start(config()).await;
    let text = words("grape", 60);
    let headers = [("X-data-parallel-rank", "1")];
    let message = json!([{"role": "user", "content": [{"type": "text", "text": text}]}]);
    let (_, chat) = sim
        .post_with(
            "/v1/chat/completions",
            &headers,
            json!({"messages": [{"role": "system", "content": "Be brief."}, message[0]], "max_tokens": 2}),
        )
        .await;
    let prompt = chat["usage"]["prompt_tokens"].as_u64().unwrap();
    let (_, response) = sim
        .post_with(
            "/v1/responses",
            &headers,
            json!({"instructions": "Be brief.", "input": text, "max_output_tokens": 2}),
        )
        .await;
    let expected = json!({
        "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + 2,
    });
    assert_eq!(response["usage"], expected);
    let (_, answer) = sim
        .post_with(
            "/v1/messages",
            &headers,
            json!({"system": [{"type": "text", "text": "Be brief."}], "messages": message, "max_tokens": 2}),
        )
        .await;
    let expected = json!({
        "input_tokens": prompt - 64, "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 0, "output_tokens": 2,
    });
    assert_eq!(answer["usage"], expected);
    let content = &chat["choices"][0]["message"]["content"];
    assert_eq!(&response["output"][0]["content"][0]["text"], content);
    assert_eq!(&answer["content"][0]["text"], content);
    sim.stop().await;
}

/// The events of a stream: their name and data.
async fn events(sim: &Sim, path: &str, body: Value) -> Vec<(String, Value)> {
    let response = sim.send(path, &[], Some(body)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let event = |it: &str| {
        let (name, data) = it.split_once('\n').unwrap();
        let name = name.strip_prefix("event: ").unwrap().to_owned();
        let data = data.strip_prefix("data: ").unwrap();
        (name, serde_json::from_str::<Value>(data).unwrap())
    };
    text.split_terminator("\n\n").map(event).collect()
}

#[tokio::test]
async fn streams_of_responses_and_messages_name_their_events_and_end_with_the_usage() {
    let sim = Sim::start(config()).await;
    let input =
        json!({"input": "Hello there", "max_output_tokens": 3, "stream": true, "min_tokens": 3});
    let told = events(&sim, "/v1/responses", input).await;
    let names: Vec<_> = told.iter().map(|it| it.0.as_str()).collect();
    let delta = "response.output_text.delta";
    let expected = [
        "response.created",
        delta,
        delta,
        delta,
        "response.completed",
    ];
    assert_eq!(names, expected);
    assert!(told.iter().all(|(name, data)| data["type"] == *name));
    let last = &told.last().unwrap().1["response"];
    assert_eq!(last["usage"]["output_tokens"], 3);
    let text: String = told
        .iter()
        .filter_map(|it| it.1["delta"].as_str())
        .collect();
    assert_eq!(last["output"][0]["content"][0]["text"], text);

    let message = json!([{"role": "user", "content": "Hello there"}]);
    let body = json!({"messages": message, "max_tokens": 2, "stream": true, "min_tokens": 2});
    let told = events(&sim, "/v1/messages", body).await;
    let names: Vec<_> = told.iter().map(|it| it.0.as_str()).collect();
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    assert_eq!(told[5].1["usage"]["output_tokens"], 2);
    assert_eq!(told[5].1["delta"]["stop_reason"], "max_tokens");
    sim.stop().await;
}

#[tokio::test]
async fn usage_says_what_was_newly_cached_as_the_real_engine_does() {
    let sim = Sim::start(config()).await;
    let body = json!({"prompt": words("lime", 50), "max_tokens": 1});
    let headers = [("X-data-parallel-rank", "0")];
    let mut details = Vec::new();
    for _ in 0..2 {
        let (_, answer) = sim
            .post_with("/v1/completions", &headers, body.clone())
            .await;
        let usage = parse_usage(answer.to_string().as_bytes()).unwrap();
        assert_eq!(usage.completion, Tokens::new(1));
        assert_eq!(answer["service_tier"], Value::Null);
        assert!(answer.get("service_tier").is_some());
        details.push(answer["usage"]["prompt_tokens_details"].clone());
    }
    let expected = [(0, 48), (48, 0)].map(|(cached, created)| {
        json!({"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": null})
    });
    assert_eq!(details, expected);
    sim.stop().await;
}

#[tokio::test]
async fn a_rendered_request_has_the_tokens_that_it_would_use() {
    let sim = Sim::start(config()).await;
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}]});
    let (_, tokenized) = sim.post("/tokenize", chat.clone()).await;
    for (path, body) in [
        ("/v1/chat/completions/render", chat.clone()),
        ("/v1/messages/render", chat),
        ("/v1/responses/render", json!({"input": "Hello"})),
    ] {
        let (_, rendered) = sim.post(path, body).await;
        assert_eq!(rendered["token_ids"], tokenized["tokens"], "{path}");
    }
    let prompt = json!({"prompt": "Hello"});
    let (_, tokenized) = sim.post("/tokenize", prompt.clone()).await;
    let (_, rendered) = sim.post("/v1/completions/render", prompt).await;
    assert_eq!(rendered[0]["token_ids"], tokenized["tokens"]);
    sim.stop().await;
}

#[tokio::test]
async fn an_older_release_says_its_version_and_not_where_its_ranks_publish() {
    for (version, sources) in [("0.32.0", 200), ("0.30.1", 404)] {
        let sim = Sim::start(Config {
            engine_version: Some(version.to_owned()),
            ..config()
        })
        .await;
        assert_eq!(sim.get("/version").await["version"], version);
        let response = sim.send("/kv_event_sources", &[], None).await;
        assert_eq!(response.status(), sources, "{version}");
        sim.stop().await;
    }
    let wrong = Config {
        engine_version: Some("latest".to_owned()),
        ..config()
    };
    let Err(BindError::Config(invalid)) = EngineSim::bind(wrong).await else {
        panic!("it binds");
    };
    assert!(invalid.to_string().contains("\"latest\""), "{invalid}");
}
