//! The fake as SGLang.

use axum::http::StatusCode;
use domain::{DpRank, Tokens};
use engine_wire::sglang::{parse_meta_info, parse_metrics, parse_server_info};
use engine_wire::{Event, parse_usage};
use serde_json::{Value, json};

use super::client::{Sim, config, words};
use super::events::replayed;
use crate::{Config, Dialect, EngineSim};

fn sglang() -> Config {
    Config {
        engine: Dialect::Sglang,
        ..config()
    }
}

fn cached(answer: &Value) -> &Value {
    &answer["usage"]["prompt_tokens_details"]["cached_tokens"]
}

#[tokio::test]
async fn a_rank_comes_from_the_body_or_before_it_from_the_header() {
    let sim = Sim::start(sglang()).await;
    let ask = async |header: &str, body_rank: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": words("fig", 40)}],
            "max_tokens": 1,
            "return_meta_info": true,
        });
        body.as_object_mut()
            .unwrap()
            .extend(body_rank.as_object().unwrap().clone());
        let headers = [("X-Data-Parallel-Rank", header)];
        let headers = if header.is_empty() {
            &headers[..0]
        } else {
            &headers
        };
        let (status, answer) = sim.post_with("/v1/chat/completions", headers, body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let (info, _) = parse_meta_info(answer.to_string().as_bytes()).unwrap();
        info.dp_rank().unwrap()
    };
    assert_eq!(ask("", json!({"routed_dp_rank": 1})).await, DpRank::new(1));
    assert_eq!(
        ask("", json!({"data_parallel_rank": 1})).await,
        DpRank::new(1)
    );
    assert_eq!(ask("0", json!({"routed_dp_rank": 1})).await, DpRank::new(0));
    let both = json!({"routed_dp_rank": 1, "data_parallel_rank": 0});
    assert_eq!(ask("", both).await, DpRank::new(1));
    sim.stop().await;
}

#[tokio::test]
async fn a_rank_it_does_not_have_is_refused_without_an_envelope() {
    let sim = Sim::start(sglang()).await;
    let path = "/v1/completions";
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 1, "routed_dp_rank": 7});
    let (status, answer) = sim.post(path, body.clone()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let expected = json!({
        "object": "error",
        "message": "routed_dp_rank=7 out of range [0, 2)",
        "type": "BadRequestError",
        "param": null,
        "code": 400,
    });
    assert_eq!(answer, expected);
    let headers = [("X-Data-Parallel-Rank", "one")];
    let (status, answer) = sim.post_with(path, &headers, body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    let (status, _) = sim
        .post(path, json!({"model": "gone", "prompt": "x"}))
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    sim.stop().await;
}

#[tokio::test]
async fn a_second_turn_finds_prompt_and_answer_and_a_repeat_announces_nothing_twice() {
    let sim = Sim::start(sglang()).await;
    let mut messages = json!([{"role": "user", "content": words("apple", 60)}]);
    let (answer, first) = sim.chat("1", &messages, 40).await;
    let turns = messages.as_array_mut().unwrap();
    turns.push(answer);
    turns.push(json!({"role": "user", "content": words("then", 12)}));
    let (_, second) = sim.chat("1", &messages, 1).await;
    let (_, repeat) = sim.chat("1", &messages, 1).await;
    assert_eq!((first, second, repeat), (0, 96, 112));

    let batches = replayed(&sim, 1, 0).await;
    let mut stored = Vec::new();
    for event in batches.iter().flat_map(|(_, batch)| &batch.events) {
        let Event::Stored(it) = event else {
            panic!("{event:?}")
        };
        assert_eq!((it.group, &it.spec_kind), (None, &None));
        stored.push(it.block_hashes.len());
    }
    // The prompt, the answer with its last token, the second prompt's one more page; of the repeat nothing.
    assert_eq!(stored, [4, 2, 1]);
    sim.stop().await;
}

#[tokio::test]
async fn a_flushed_cache_is_announced_at_once() {
    let sim = Sim::start(sglang()).await;
    let messages = json!([{"role": "user", "content": words("plum", 60)}]);
    sim.chat("0", &messages, 1).await;
    assert_eq!(sim.text("/flush_cache").await, "flushed\n");
    let batches = replayed(&sim, 0, 0).await;
    assert_eq!(batches.last().unwrap().1.events, [Event::Cleared]);
    assert_eq!(sim.chat("0", &messages, 1).await.1, 0);
    sim.stop().await;
}

#[tokio::test]
async fn evicted_pages_leave_in_one_event_and_a_salt_is_in_every_store() {
    let sim = Sim::start(Config {
        block_size: 1,
        kv_blocks: 64,
        ..sglang()
    })
    .await;
    let body = |first: u32| {
        let prompt: Vec<u32> = (first..first + 40).collect();
        json!({"prompt": prompt, "max_tokens": 3, "cache_salt": "s", "routed_dp_rank": 0, "ignore_eos": true})
    };
    for first in [100, 200] {
        let (status, answer) = sim.post("/v1/completions", body(first)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    let (_, repeat) = sim.post("/v1/completions", body(200)).await;
    assert_eq!(cached(&repeat), 39);
    // 42 pages of the second and 22 of the first are blocks of 16.
    let held = sim.get("/debug/kv_blocks").await["ranks"]["0"].clone();
    assert_eq!(held["blocks"], 2 + 1);
    let batches = replayed(&sim, 0, 0).await;
    let events: Vec<_> = batches
        .iter()
        .flat_map(|(_, batch)| &batch.events)
        .collect();
    let salts = events.iter().filter_map(|it| match it {
        Event::Stored(stored) => Some((stored.block_size, stored.salt.as_deref())),
        _ => None,
    });
    let salts: Vec<_> = salts.collect();
    assert_eq!(salts, [(1, Some("s")); 4]);
    let removed = events.iter().filter_map(|it| match it {
        Event::Removed(removed) => Some(removed.block_hashes.len()),
        _ => None,
    });
    let first_removal = removed.into_iter().next().unwrap();
    assert!(first_removal > 1, "{first_removal}");
    sim.stop().await;
}

#[tokio::test]
async fn discovery_and_metrics_read_as_those_of_sglang() {
    let sim = Sim::start(sglang()).await;
    for path in ["/server_info", "/get_server_info"] {
        let info = parse_server_info(sim.text(path).await.as_bytes()).unwrap();
        assert_eq!((info.dp_size, info.page_size), (2, Some(16)));
        assert_eq!(info.version, "0.5.23");
        let events = info.kv_events.unwrap();
        for (rank, endpoint) in (0..).zip(&sim.endpoints) {
            let publish = format!("tcp://{}:{}", events.host, events.publish + rank);
            let replay = events
                .replay
                .map(|it| format!("tcp://{}:{}", events.host, it + rank));
            assert_eq!(endpoint.publish, publish);
            assert_eq!(endpoint.replay, replay);
        }
    }
    assert_eq!(sim.send("/version", &[], None).await.status(), 404);
    let messages = json!([{"role": "user", "content": words("pear", 40)}]);
    sim.chat("1", &messages, 3).await;
    let text = sim.text("/metrics").await;
    let scrape = parse_metrics(&text);
    assert_eq!((scrape.ranks.len(), scrape.unreadable), (2, 0));
    assert!(text.contains("sglang:prompt_tokens_total"), "{text}");
    sim.stop().await;
}

#[tokio::test]
async fn without_events_it_says_so() {
    let silent = Config {
        kv_events_port: None,
        replay_port: None,
        ..sglang()
    };
    let sim = Sim::start(silent).await;
    let info = parse_server_info(sim.text("/server_info").await.as_bytes()).unwrap();
    assert_eq!(info.kv_events, None);
    sim.stop().await;
}

#[tokio::test]
async fn each_endpoint_takes_a_rank_as_its_release_does() {
    // Of ranks asked for in the header, in the body, and not at all: which of the answers ran on rank 1.
    let check = async |version: &str, path: &str, body: Value, pinned: [bool; 2]| {
        let sim = Sim::start(Config {
            engine_version: Some(version.to_owned()),
            ..sglang()
        })
        .await;
        // One at a time, so the engine's own choice goes 0, 1, 0, 1.
        let mut seen = Vec::new();
        for (headers, in_body) in [(&[("X-Data-Parallel-Rank", "1")][..], false), (&[], true)] {
            let mut body = body.clone();
            if in_body {
                body["routed_dp_rank"] = json!(1);
            }
            let before = published(&sim).await;
            let (status, answer) = sim.post_with(path, headers, body).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
            let usage = parse_usage(answer.to_string().as_bytes());
            assert!(
                usage.is_some_and(|it| it.prompt > Tokens::new(16)),
                "{answer}"
            );
            let after = published(&sim).await;
            seen.push(after[1] > before[1]);
            sim.text("/flush_cache").await;
        }
        assert_eq!(seen, pinned, "{version} {path}");
        sim.stop().await;
    };
    let text = words("kiwi", 40);
    let chat = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1});
    let input = json!({"input": text, "max_output_tokens": 1});
    check("0.5.23", "/v1/chat/completions", chat.clone(), [true, true]).await;
    check("0.5.23", "/v1/responses", input.clone(), [true, true]).await;
    // The engine's own first choice is 0, its second 1.
    check("0.5.19", "/v1/responses", input, [false, true]).await;
    // After a rank that was taken, its own first choice is 0.
    check("0.5.23", "/v1/messages", chat.clone(), [true, false]).await;
    check("0.5.9", "/v1/chat/completions", chat, [false, true]).await;
}

/// Batches that each rank has published.
async fn published(sim: &Sim) -> [usize; 2] {
    [
        replayed(sim, 0, 0).await.len(),
        replayed(sim, 1, 0).await.len(),
    ]
}

#[tokio::test]
async fn ranks_of_sglang_begin_at_0() {
    let config = Config {
        start_rank: 4,
        ..sglang()
    };
    let error = EngineSim::bind(config).await.err().unwrap();
    assert!(error.to_string().contains("check the configuration"));
}
