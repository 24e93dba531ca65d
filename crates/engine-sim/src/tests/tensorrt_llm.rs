//! The fake as TensorRT-LLM behind the worker of `deploy/trtllm`.

use axum::http::StatusCode;
use domain::{DpRank, FirstRank};
use engine_wire::Event;
use engine_wire::trtllm::{
    Conversations as Places, Item, decode_body, parse_metrics, parse_worker_info,
};
use serde_json::{Value, json};

use super::client::{Sim, config, words};
use crate::{Config, Dialect, EngineSim};

fn tensorrt_llm(conversations: Option<&str>) -> Config {
    Config {
        engine: Dialect::TensorRtLlm,
        conversations: conversations.map(|it| it.parse().unwrap()),
        ..config()
    }
}

/// Takes what the engine has buffered.
async fn drain(sim: &Sim) -> Vec<Item> {
    let (status, body) = sim.post("/kv_cache_events", json!({})).await;
    assert_eq!(status, StatusCode::OK);
    decode_body(body.to_string().as_bytes()).unwrap()
}

/// The ranks that stored something, of what is drained.
async fn stored_at(sim: &Sim) -> Vec<u32> {
    let stores = |item: &Item| matches!(item.events[..], [Event::Stored(_)]);
    let items = drain(sim).await.into_iter().filter(stores);
    let mut ranks: Vec<u32> = items.map(|it| it.dp_rank.unwrap().get()).collect();
    ranks.dedup();
    ranks
}

/// A turn of a conversation, without one where its name is empty; where it ran, by its blocks, which are new.
async fn turn(sim: &Sim, conversation: &str, rank: Option<&str>, topic: &str) -> Vec<u32> {
    let mut body =
        json!({"messages": [{"role": "user", "content": words(topic, 60)}], "max_tokens": 2});
    if !conversation.is_empty() {
        body["conversation_params"] = json!({"conversation_id": conversation});
    }
    let headers: Vec<_> = rank
        .map(|it| ("X-Data-Parallel-Rank", it))
        .into_iter()
        .collect();
    let (status, answer) = sim.post_with("/v1/chat/completions", &headers, body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    stored_at(sim).await
}

#[tokio::test]
async fn it_says_what_it_is_and_gives_its_events_once() {
    let sim = Sim::start(tensorrt_llm(None)).await;
    let info = parse_worker_info(sim.text("/worker_info").await.as_bytes()).unwrap();
    assert_eq!((info.dp_size, info.tokens_per_block), (2, 16));
    assert_eq!((info.kv_events, info.kv_blocks), (true, Some(256)));
    assert_eq!(info.conversations, Places::Sender);
    assert_eq!(
        sim.get("/v1/models").await["data"][0]["owned_by"],
        "tensorrt_llm"
    );
    assert!(sim.endpoints.is_empty());

    let ids = |items: &[Item]| -> Vec<_> {
        let id = |it: &Item| (it.dp_rank.unwrap().get(), it.event_id.unwrap());
        items.iter().map(id).collect()
    };
    let begun = drain(&sim).await;
    assert_eq!(ids(&begun), [(0, 0), (1, 0)]);
    assert!(
        begun
            .iter()
            .all(|it| matches!(it.events[..], [Event::Created { .. }]))
    );
    let body = json!({"prompt": words("fig", 60), "max_tokens": 1});
    let rank = [("x-data-parallel-rank", "1")];
    let (_, answer) = sim.post_with("/v1/completions", &rank, body).await;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let told = drain(&sim).await;
    assert_eq!(ids(&told)[0], (1, 1));
    assert!(told.iter().all(|it| it.dp_rank == Some(DpRank::new(1))));
    assert_eq!(drain(&sim).await, []);

    let gauges = parse_metrics(&sim.text("/metrics").await).ranks;
    assert_eq!(gauges.len(), 2);
    assert!(
        gauges
            .values()
            .all(|it| it.running == Some(0) && it.kv_blocks == Some(256))
    );
    sim.stop().await;
}

#[tokio::test]
async fn a_rank_that_would_be_ignored_is_refused() {
    let check = async |conversations: Option<&str>, rank: &str, expected: &str| {
        let sim = Sim::start(tensorrt_llm(conversations)).await;
        let body = json!({"prompt": "fig", "max_tokens": 1});
        let headers = [("x-data-parallel-rank", rank)];
        let (status, answer) = sim.post_with("/v1/completions", &headers, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(answer["error"]["message"], expected);
        sim.stop().await;
    };
    check(None, "2", "data_parallel_rank 2 is out of range [0, 2)").await;
    check(None, "one", "X-Data-Parallel-Rank is a number").await;
    let expected =
        "the engine chooses the rank of conversations here: send no X-Data-Parallel-Rank";
    check(Some("engine"), "1", expected).await;
}

#[tokio::test]
async fn an_explicit_first_rank_is_kept_whatever_later_turns_name() {
    let sim = Sim::start(tensorrt_llm(Some("router"))).await;
    assert_eq!(turn(&sim, "a", Some("1"), "ant").await, [1]);
    assert_eq!(turn(&sim, "a", None, "bee").await, [1]);
    assert_eq!(turn(&sim, "a", Some("0"), "cat").await, [1]);
    // What belongs to no conversation goes where it is told.
    assert_eq!(turn(&sim, "", Some("0"), "dog").await, [0]);
    sim.stop().await;
}

#[tokio::test]
async fn an_engine_that_chooses_keeps_each_conversation_where_it_began() {
    let sim = Sim::start(tensorrt_llm(Some("engine"))).await;
    let first = [
        turn(&sim, "a", None, "ant").await,
        turn(&sim, "b", None, "bee").await,
    ];
    assert_eq!(first, [[0], [1]]);
    let later = [
        turn(&sim, "b", None, "cat").await,
        turn(&sim, "a", None, "dog").await,
    ];
    assert_eq!(later, [[1], [0]]);
    sim.stop().await;
}

#[tokio::test]
async fn before_pull_request_16815_a_first_rank_is_followed_and_forgotten() {
    let sim = Sim::start(tensorrt_llm(Some("router,forgets-first-ranks"))).await;
    let info = parse_worker_info(sim.text("/worker_info").await.as_bytes()).unwrap();
    assert_eq!(info.conversations, Places::SenderOnce(FirstRank::Unproven));
    assert_eq!(turn(&sim, "a", Some("1"), "ant").await, [1]);
    assert_eq!(turn(&sim, "a", None, "bee").await, [0]);
    sim.stop().await;
}

#[tokio::test]
async fn a_restart_forgets_conversations_and_counts_events_anew() {
    let mut config = tensorrt_llm(Some("router"));
    config.misbehave = "restart-after=1".parse().unwrap();
    let sim = Sim::start(config).await;
    let chat = async |topic: &str, rank: &[(&str, &str)]| {
        let body = json!({"messages": [{"role": "user", "content": words(topic, 60)}], "max_tokens": 1,
            "conversation_params": {"conversation_id": "a"}});
        let (status, _) = sim.post_with("/v1/chat/completions", rank, body).await;
        assert_eq!(status, StatusCode::OK);
    };
    chat("ant", &[("x-data-parallel-rank", "1")]).await;
    // What was not drained is gone with the engine, and the conversation begins anew, at the first rank.
    chat("bee", &[]).await;
    let told = drain(&sim).await;
    let begun = |rank| {
        let first = told.iter().find(|it| it.dp_rank == Some(DpRank::new(rank)));
        let first = first.unwrap();
        first.event_id == Some(0) && matches!(first.events[..], [Event::Created { .. }])
    };
    assert!(begun(0) && begun(1));
    let stored = told
        .iter()
        .filter(|it| matches!(it.events[..], [Event::Stored(_)]));
    assert!(stored.clone().count() > 0);
    assert!(
        stored
            .into_iter()
            .all(|it| it.dp_rank == Some(DpRank::new(0)))
    );
    sim.stop().await;
}

#[tokio::test]
async fn a_buffer_that_overflows_drops_its_oldest_events_without_a_word() {
    let config = Config {
        buffer_steps: 2,
        ..tensorrt_llm(None)
    };
    let sim = Sim::start(config).await;
    for topic in ["ant", "bee", "cat"] {
        let body = json!({"prompt": words(topic, 60), "max_tokens": 1});
        let (status, _) = sim
            .post_with("/v1/completions", &[("x-data-parallel-rank", "0")], body)
            .await;
        assert_eq!(status, StatusCode::OK);
    }
    let told = drain(&sim).await;
    let ids = |rank: u32| -> Vec<u64> {
        let of_rank = told
            .iter()
            .filter(|it| it.dp_rank == Some(DpRank::new(rank)));
        of_rank.filter_map(|it| it.event_id).collect()
    };
    assert_eq!(ids(1), [0]);
    assert_eq!(ids(0).len(), 2);
    assert!(ids(0)[0] > 0);
    sim.stop().await;
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let check = async |config: Config, expected: &str| {
        let error = EngineSim::bind(config).await.err().unwrap();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, expected);
    };
    let vllm = Config {
        conversations: "router".parse().ok(),
        ..config()
    };
    check(vllm, "conversations are kept by tensorrt-llm, not by vllm").await;
    let second = Config {
        start_rank: 2,
        ..tensorrt_llm(None)
    };
    let expected = "start_rank 2 is for vllm: the ranks of tensorrt-llm begin at 0";
    check(second, expected).await;
    let mut late = tensorrt_llm(None);
    late.misbehave = "publish-late=5".parse().unwrap();
    let expected = "misbehave publish-late needs events that are published, which those of tensorrt-llm are not";
    check(late, expected).await;
}

#[tokio::test]
async fn without_events_nothing_is_given() {
    let config = Config {
        kv_events_port: None,
        replay_port: None,
        ..tensorrt_llm(None)
    };
    let sim = Sim::start(config).await;
    let info: Value = sim.get("/worker_info").await;
    assert_eq!(info["kv_events"], false);
    let (status, _) = sim.post("/kv_cache_events", json!({})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    sim.stop().await;
}
