//! What a fake engine does wrong when told to.

use std::time::Duration;

use axum::http::StatusCode;
use domain::{DpRank, EventSeq};
use engine_wire::vllm::parse_metrics;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::{PATIENCE, Sim, config, words};
use super::events::replayed;
use crate::{BindError, Config, EngineSim};

fn misbehaving(how: &str) -> Config {
    Config {
        misbehave: how.parse().unwrap(),
        ..config()
    }
}

async fn ask(sim: &Sim, path: &str, rank: &str, topic: &str) -> (StatusCode, Value) {
    let text = words(topic, 40);
    let body = json!({
        "prompt": text,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
    });
    let headers = [("X-data-parallel-rank", rank)];
    sim.post_with(path, &headers, body).await
}

/// Batches that the rank at `at` has published.
async fn published(sim: &Sim, at: usize) -> usize {
    replayed(sim, at, 0).await.len()
}

#[tokio::test]
async fn a_rank_is_ignored_on_the_endpoints_named_and_heard_on_the_others() {
    let sim = Sim::start(misbehaving("ignore-rank=completions")).await;
    // Its own balancing begins with rank 0; a rank it does not have is as good as any.
    for (path, rank, lands) in [
        ("/v1/completions", "1", 0),
        ("/v1/chat/completions", "0", 0),
        ("/v1/completions", "9", 1),
        ("/v1/messages", "0", 0),
        ("/v1/chat/completions", "1", 1),
    ] {
        let before = published(&sim, lands).await;
        let topic = format!("{path}{rank}");
        let (status, answer) = ask(&sim, path, rank, &topic).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(published(&sim, lands).await, before + 1, "{path} {rank}");
    }
    sim.stop().await;
}

#[tokio::test]
async fn events_and_metrics_count_from_the_start_rank_and_so_does_the_header_unless_told() {
    for (how, of_first, of_second, refused, range) in [
        (None, "2", "3", "0", "[2, 4)"),
        (Some("local-ranks"), "0", "1", "2", "[0, 2)"),
    ] {
        let config = Config {
            start_rank: 2,
            misbehave: how.map(|it| it.parse().unwrap()).unwrap_or_default(),
            ..config()
        };
        let sim = Sim::start(config).await;
        let ranks: Vec<_> = sim.endpoints.iter().map(|it| it.dp_rank).collect();
        assert_eq!(ranks, [DpRank::new(2), DpRank::new(3)]);
        let scrape = parse_metrics(&sim.text("/metrics").await);
        assert_eq!(scrape.ranks.into_keys().collect::<Vec<_>>(), ranks);
        for (at, header) in [(0, of_first), (1, of_second)] {
            assert_eq!(ask(&sim, "/v1/completions", header, header).await.0, 200);
            let batches = replayed(&sim, at, 0).await;
            assert_eq!(batches.len(), 1);
            assert_eq!(batches[0].1.dp_rank, Some(ranks[at]));
        }
        let held = sim.get("/debug/kv_blocks").await["ranks"].clone();
        assert!(held.get("2").is_some() && held.get("0").is_none(), "{held}");
        let (status, answer) = ask(&sim, "/v1/completions", refused, "x").await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.ends_with(&format!("out of range {range}.")),
            "{message}"
        );
        sim.stop().await;
    }
}

#[tokio::test]
async fn local_ranks_need_a_start_rank() {
    let error = EngineSim::bind(misbehaving("local-ranks")).await;
    let Err(BindError::Config(invalid)) = error else {
        panic!("it binds");
    };
    assert!(invalid.to_string().contains("start_rank"), "{invalid}");
}

#[tokio::test]
async fn only_the_first_rank_is_heard() {
    let sim = Sim::start(misbehaving("only-rank-0-publishes")).await;
    for rank in ["0", "1"] {
        ask(&sim, "/v1/completions", rank, "nut").await;
    }
    let (_, repeat) = ask(&sim, "/v1/completions", "1", "nut").await;
    let cached = &repeat["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(cached, 32, "the other rank caches all the same");
    assert_eq!((published(&sim, 0).await, published(&sim, 1).await), (1, 0));
    sim.stop().await;
}

#[tokio::test]
async fn after_its_requests_an_engine_begins_anew_once_and_without_a_word() {
    let sim = Sim::start(misbehaving("restart-after=2")).await;
    for topic in ["one", "two"] {
        ask(&sim, "/v1/completions", "1", topic).await;
    }
    let began = Instant::now();
    while published(&sim, 1).await > 0 {
        assert!(began.elapsed() < PATIENCE, "it goes on");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(sim.get("/debug/kv_blocks").await["ranks"]["1"]["blocks"], 0);
    for cached in [0, 32, 32, 32] {
        let (_, answer) = ask(&sim, "/v1/completions", "1", "two").await;
        let details = &answer["usage"]["prompt_tokens_details"];
        assert_eq!(details["cached_tokens"], cached, "once only");
    }
    let batches = replayed(&sim, 1, 0).await;
    assert_eq!(batches[0].0, EventSeq::new(0));
    sim.stop().await;
}

#[tokio::test]
async fn events_come_late_and_in_order() {
    let sim = Sim::start(misbehaving("publish-late=700")).await;
    let began = Instant::now();
    for topic in ["one", "two"] {
        ask(&sim, "/v1/completions", "0", topic).await;
    }
    let answered = Instant::now();
    while published(&sim, 0).await < 2 {
        assert!(answered.elapsed() < PATIENCE, "they never come");
        sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() >= Duration::from_millis(700));
    let batches = replayed(&sim, 0, 0).await;
    assert!(batches[0].1.ts < batches[1].1.ts);
    sim.stop().await;
}

#[tokio::test]
async fn what_is_lost_on_the_way_is_counted_and_can_still_be_replayed() {
    let sim = Sim::start(misbehaving("lossy-events")).await;
    for (cut, lost) in [("1", 3), ("0", 3)] {
        let path = format!("/debug/events?cut={cut}");
        let told = sim.send(&path, &[], Some(json!(null))).await;
        assert_eq!(told.status(), StatusCode::NO_CONTENT);
        for turn in 0..3 {
            let topic = format!("{cut}.{turn}");
            ask(&sim, "/v1/completions", "0", &topic).await;
        }
        let ranks = sim.get("/debug/events").await["ranks"].clone();
        assert_eq!(ranks[0]["sent"], published(&sim, 0).await);
        assert_eq!(
            (&ranks[0]["lost"], &ranks[1]["sent"]),
            (&json!(lost), &json!(0))
        );
    }
    let told = sim.send("/debug/events?cut=2", &[], Some(json!(null)));
    assert_eq!(told.await.status(), StatusCode::BAD_REQUEST);
    sim.stop().await;
}
