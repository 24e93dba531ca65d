//! The HTTP API.

use std::time::Duration;

use axum::http::StatusCode;
use domain::{DpRank, Tokens};
use engine_wire::parse_models;
use engine_wire::vllm::{parse_kv_event_sources, parse_metrics, parse_tokenized, tokenize_request};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::client::{PATIENCE, Sim, config, words};
use crate::{BindError, Config, EngineSim};

#[tokio::test]
async fn a_second_turn_on_the_same_rank_finds_prompt_and_answer_in_the_cache() {
    let sim = Sim::start(config()).await;
    let mut messages = json!([{"role": "user", "content": words("apple", 60)}]);
    let (answer, cached) = sim.chat("1", &messages, 40).await;
    assert_eq!(cached, 0);
    let turns = messages.as_array_mut().unwrap();
    turns.push(answer);
    turns.push(json!({"role": "user", "content": "and then?"}));
    // Marker, 60 words and the last space, end, marker: 64 tokens, and 39 of the answer that were fed back.
    let (_, on_other_rank) = sim.chat("0", &messages, 1).await;
    let (_, cached) = sim.chat("1", &messages, 1).await;
    assert_eq!((on_other_rank, cached), (0, 96));
    sim.stop().await;
}

#[tokio::test]
async fn what_was_served_is_listed_with_the_rank_asked_for_and_the_rank_that_ran() {
    let sim = Sim::start(config()).await;
    let body = json!({"prompt": [20, 21, 22], "max_tokens": 1});
    let asked = [("X-data-parallel-rank", "1"), ("x-request-id", "first")];
    for headers in [&asked[..], &[]] {
        let (status, _) = sim
            .post_with("/v1/completions", headers, body.clone())
            .await;
        assert_eq!(status, StatusCode::OK);
    }
    let listed = sim.get("/debug/requests").await;
    let row = |name, rank, asked| json!({"request_id": name, "dp_rank": rank, "asked_dp_rank": asked, "prompt_tokens": 3, "cached_tokens": 0});
    let expected = [
        row(json!("first"), 1, json!(1)),
        row(Value::Null, 0, Value::Null),
    ];
    assert_eq!(listed["requests"], json!(expected));
    sim.stop().await;
}

#[tokio::test]
async fn without_a_rank_the_engine_balances_and_does_not_look_at_its_caches() {
    let sim = Sim::start(config()).await;
    let body = json!({"prompt": words("plum", 50), "max_tokens": 1});
    let mut cached = Vec::new();
    for _ in 0..3 {
        let (_, answer) = sim.post("/v1/completions", body.clone()).await;
        cached.push(answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone());
    }
    assert_eq!(cached, [0, 0, 48]);
    sim.stop().await;
}

#[tokio::test]
async fn a_rank_out_of_range_is_refused_and_one_that_is_no_number_ignored() {
    let sim = Sim::start(config()).await;
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 1});
    for (rank, expected) in [
        ("2", StatusCode::BAD_REQUEST),
        ("-1", StatusCode::BAD_REQUEST),
        ("one", StatusCode::OK),
    ] {
        let headers = [("X-data-parallel-rank", rank)];
        let (status, answer) = sim
            .post_with("/v1/completions", &headers, body.clone())
            .await;
        assert_eq!(status, expected);
        if status != StatusCode::OK {
            let message = format!("data_parallel_rank {rank} is out of range [0, 2).");
            assert_eq!(answer["error"]["message"], message);
            assert_eq!(answer["error"]["code"], 400);
        }
    }
    sim.stop().await;
}

#[tokio::test]
async fn a_stream_tells_what_the_whole_answer_tells_and_usage_only_when_asked() {
    let sim = Sim::start(config()).await;
    let ask = |extra: Value| {
        let mut body =
            json!({"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 12});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        body
    };
    let path = "/v1/chat/completions";
    let (_, whole) = sim.post(path, ask(json!({}))).await;
    let (headers, frames) = sim.stream(path, ask(json!({"stream": true}))).await;
    assert!(
        headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/event-stream")
    );
    let content: String = frames
        .iter()
        .filter_map(|it| it["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(whole["choices"][0]["message"]["content"], content);
    assert!(!content.starts_with(' ') && !content.is_empty());
    let last = &frames.last().unwrap()["choices"][0];
    assert_eq!(last["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert!(frames.iter().all(|it| it.get("usage").is_none()));

    let with_usage = json!({"stream": true, "stream_options": {"include_usage": true}});
    let (_, frames) = sim.stream(path, ask(with_usage)).await;
    let last = frames.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"]["total_tokens"],
        whole["usage"]["total_tokens"]
    );
    sim.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_rank() {
    let slow = Config {
        speed_up: 1.0,
        ..config()
    };
    let sim = Sim::start(slow).await;
    let endless = |stream: bool| json!({"prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": true, "stream": stream});
    let waiting = sim.send("/v1/completions", &[], Some(endless(false)));
    // Left before the first byte, and in the middle of a stream.
    assert!(
        tokio::time::timeout(Duration::from_millis(300), waiting)
            .await
            .is_err()
    );
    let streaming = sim.send("/v1/completions", &[], Some(endless(true))).await;
    let mut body = streaming.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(running(&sim).await, 1);
    drop(body);
    let idle = async {
        while running(&sim).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, idle).await.unwrap();
    assert!(
        sim.text("/metrics")
            .await
            .contains("vllm:request_aborted_total{engine=\"0\"")
    );
    sim.stop().await;
}

async fn running(sim: &Sim) -> u32 {
    let scrape = parse_metrics(&sim.text("/metrics").await);
    scrape.ranks.values().filter_map(|it| it.running).sum()
}

#[tokio::test]
async fn the_same_prompt_as_text_ids_and_lists_of_one_has_the_same_answer() {
    let sim = Sim::start(config()).await;
    let text = "What is the answer?";
    let (_, tokenized) = sim.post("/tokenize", json!({"prompt": text})).await;
    let ids = tokenized["tokens"].clone();
    let mut answers = Vec::new();
    for prompt in [json!(text), json!([text]), ids.clone(), json!([ids])] {
        let body = json!({"prompt": prompt, "max_tokens": 8, "return_token_ids": true});
        let (status, answer) = sim.post("/v1/completions", body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["choices"][0]["prompt_token_ids"], ids);
        answers.push(answer["choices"][0]["text"].clone());
    }
    answers.dedup();
    assert_eq!(answers.len(), 1);
    let both = json!({"prompt": [text, text]});
    assert_eq!(
        sim.post("/v1/completions", both).await.0,
        StatusCode::BAD_REQUEST
    );
    sim.stop().await;
}

#[tokio::test]
async fn tokenize_gives_the_tokens_that_a_chat_uses() {
    let sim = Sim::start(config()).await;
    let chat = json!({"model": "fake-model", "max_tokens": 1, "return_token_ids": true, "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Hello"},
    ]});
    let request = tokenize_request(chat.to_string().as_bytes()).unwrap();
    let request = serde_json::from_slice(&request).unwrap();
    let (_, tokenized) = sim.post("/tokenize", request).await;
    let tokenized = parse_tokenized(tokenized.to_string().as_bytes()).unwrap();
    let (_, answer) = sim.post("/v1/chat/completions", chat).await;
    assert_eq!(answer["prompt_token_ids"], json!(tokenized.tokens));
    assert_eq!(answer["usage"]["prompt_tokens"], tokenized.count);
    let (_, text) = sim
        .post("/detokenize", json!({"tokens": tokenized.tokens}))
        .await;
    assert!(text["prompt"].is_string());
    sim.stop().await;
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_in_openais_shape() {
    let sim = Sim::start(config()).await;
    let check = async |body: Value, status: u16, hint: &str| {
        let (got, answer) = sim.post("/v1/completions", body).await;
        assert_eq!(got.as_u16(), status, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(hint), "{message}");
        assert!(answer["error"]["type"].is_string());
    };
    let unknown = "The model `gone` does not exist. Valid aliases: fake-model.";
    check(json!({"model": "gone", "prompt": "x"}), 404, unknown).await;
    let long =
        "maximum context length is 4096 tokens. However, your prompt contains 4096 input tokens";
    check(json!({"prompt": vec![7; 4096]}), 400, long).await;
    check(
        json!({"prompt": [7], "max_tokens": 4096}),
        400,
        "4096 output tokens",
    )
    .await;
    let zero = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)";
    check(json!({"prompt": [7], "max_tokens": 0}), 400, zero).await;
    check(json!({"prompt": []}), 400, "empty").await;
    check(json!({"prompt": [-1]}), 400, "token id").await;
    let salt =
        "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)";
    check(json!({"prompt": "x", "cache_salt": ""}), 400, salt).await;
    check(json!({"prompt": "x", "n": 2}), 400, "n = 1").await;
    check(json!([]), 400, "").await;
    sim.stop().await;
}

#[tokio::test]
async fn discovery_and_metrics_read_as_those_of_vllm() {
    let adapted = Config {
        lora_adapters: vec!["fake-lora".to_owned()],
        ..config()
    };
    let sim = Sim::start(adapted).await;
    let listed = sim.text("/v1/models").await;
    let dated: Value = serde_json::from_str(&listed).unwrap();
    assert!(dated["data"][0]["created"].is_u64());
    let models = parse_models(listed.as_bytes()).unwrap();
    assert_eq!(models[0].name.as_str(), "fake-model");
    assert_eq!(models[0].max_model_len, Some(4096));
    assert_eq!(models[1].parent.as_ref(), Some(&models[0].name));
    let sources = sim.text("/kv_event_sources").await;
    let endpoints = parse_kv_event_sources(sources.as_bytes(), "localhost").unwrap();
    assert_eq!(endpoints, sim.endpoints);
    assert_eq!(sim.get("/version").await["version"], "0.33.0");

    let messages = json!([{"role": "user", "content": words("pear", 40)}]);
    sim.chat("1", &messages, 3).await;
    sim.chat("1", &messages, 3).await;
    let scrape = parse_metrics(&sim.text("/metrics").await);
    assert_eq!(scrape.unreadable, 0);
    let gauges = scrape.ranks[&DpRank::new(1)];
    assert_eq!(gauges.prefix_queries, Some(Tokens::new(88)));
    assert_eq!(gauges.prefix_hits, Some(Tokens::new(32)));
    assert_eq!(gauges.kv_blocks, Some(256));
    assert_eq!((gauges.running, gauges.waiting), (Some(0), Some(0)));
    sim.stop().await;
}

#[tokio::test]
async fn an_address_in_use_and_a_wrong_setting_are_named() {
    let sim = Sim::start(config()).await;
    let taken = Config {
        listen: sim.address,
        ..config()
    };
    let error = EngineSim::bind(taken).await.err().unwrap();
    assert!(error.to_string().contains(&sim.address.to_string()));
    let overlapping = Config {
        kv_events_port: Some(6000),
        replay_port: Some(6001),
        ..config()
    };
    let error = EngineSim::bind(overlapping).await.err().unwrap();
    let BindError::Config(invalid) = error else {
        panic!("{error}");
    };
    assert!(invalid.to_string().contains("replay_port 6001"));
    sim.stop().await;
}
