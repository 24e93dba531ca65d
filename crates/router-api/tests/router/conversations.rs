//! Turns of a conversation, and what keeps them together.

use domain::{DpRank, Target};
use serde_json::{Value, json};

use crate::client::Answer;
use crate::engine::Engine;
use crate::world::{World, config};

/// One turn of conversation `c`, its answer, and the rank that the engine was asked for.
async fn turn(world: &World, engine: &mut Engine, body: &Value) -> (Answer, Option<String>) {
    let headers = [("x-rankway-conversation", "c")];
    let body = body.to_string();
    let engine_side = async {
        let arrival = engine.next().await;
        let own = arrival.headers.keys();
        assert!(
            own.into_iter()
                .all(|it| !it.as_str().starts_with("x-rankway"))
        );
        let rank = arrival.rank().map(str::to_owned);
        arrival.answer(
            200,
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":4}}"#,
        );
        rank
    };
    tokio::join!(
        world.client.post("/v1/completions", &headers, &body),
        engine_side
    )
}

fn prompt(tokens: std::ops::Range<u32>) -> Value {
    json!({"model": "m", "prompt": tokens.collect::<Vec<_>>()})
}

async fn until_confirmed(world: &World, turns: u32) {
    world
        .until(async || {
            let bound = world.affinity.list(10).await.unwrap();
            bound.iter().any(|it| it.binding.turns == turns)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_turns_go_to_the_bound_rank() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (first, rank) = turn(&world, &mut engine, &prompt(0..9)).await;
    let target = format!("w1#1/{}", rank.as_deref().unwrap());
    assert_eq!(first.header("x-rankway-dp-rank"), rank.as_deref());
    until_confirmed(&world, 1).await;
    let bound = world.affinity.list(10).await.unwrap();
    assert_eq!(bound[0].binding.target.to_string(), target);
    // Prompt and answer but for its last token, in full blocks of four.
    assert_eq!(bound[0].binding.held.get(), 12);
    world.index.hold(&target, 2);
    for turns in 2..6 {
        let (answer, same) = turn(&world, &mut engine, &prompt(0..20)).await;
        assert_eq!(same, rank);
        assert_eq!(answer.header("x-rankway-overlap-tokens"), Some("8"));
        let explained = world.admin("decisions/last").await;
        assert_eq!(explained["reason"], "bound");
        assert_eq!(explained["conversation"], "c");
        until_confirmed(&world, turns).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_index_the_binding_still_holds() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (_, rank) = turn(&world, &mut engine, &prompt(0..9)).await;
    until_confirmed(&world, 1).await;
    world.index.fall_silent();
    let (answer, same) = turn(&world, &mut engine, &prompt(0..20)).await;
    assert_eq!(same, rank);
    let id = answer.header("x-rankway-decision").unwrap();
    let explained = world.admin(&format!("decisions/{id}")).await;
    assert_eq!(explained["degraded"], json!(["no_index"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_to_a_rank_of_a_missing_shard_holds_though_another_rank_holds_more() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (_, rank) = turn(&world, &mut engine, &prompt(0..9)).await;
    until_confirmed(&world, 1).await;
    let bound = world.affinity.list(10).await.unwrap()[0].binding.clone();
    let other = DpRank::new(1 - bound.target.dp_rank.get());
    let other = Target {
        dp_rank: other,
        ..bound.target.clone()
    };
    world.index.hold(&other.to_string(), 4);
    world.index.lose(&bound.target);
    let (answer, same) = turn(&world, &mut engine, &prompt(0..20)).await;
    assert_eq!(same, rank);
    let id = answer.header("x-rankway-decision").unwrap();
    let explained = world.admin(&format!("decisions/{id}")).await;
    assert_eq!(explained["degraded"], json!(["partial_index"]));
    assert_eq!(explained["reason"], "bound");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_hashed_as_the_engine_tokenises_it() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    engine.tokenise_to(Some((0..9).collect()));
    let text = json!({"model": "m", "prompt": "some text", "cache_salt": "s"});
    turn(&world, &mut engine, &text).await;
    engine.tokenise_to(None);
    let ids = json!({"model": "m", "prompt": (0..9).collect::<Vec<u32>>(), "cache_salt": "s"});
    turn(&world, &mut engine, &ids).await;
    let asked = world.index.asked.lock().unwrap();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].hashes.blocks(), 2);
    assert_eq!(asked[0], asked[1]);
    assert_eq!(asked[0].namespace.salt.as_deref(), Some("s"));
    assert!(asked[0].record);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_does_not_tokenise_is_made_up_for_by_another() {
    let (broken, other) = (Engine::start().await, Engine::start().await);
    let world = World::before(&[&broken, &other]).await;
    other.tokenise_to(Some((0..9).collect()));
    let text = json!({"model": "m", "prompt": "some text"}).to_string();
    // They are asked in turn.
    for _ in 0..4 {
        let routed = world.client.post("/v1/route", &[], &text).await.json();
        assert_eq!(routed["degraded"], json!([]));
        assert_eq!(routed["isl"], 9);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_without_dispatch_leaves_nothing() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    world.index.hold("w1#1/1", 2);
    let body =
        json!({"model": "m", "token_ids": (0..9).collect::<Vec<u32>>(), "conversation": "c"});
    let routed = world
        .client
        .post("/v1/route", &[], &body.to_string())
        .await
        .json();
    assert_eq!(routed["target"], "w1#1/1");
    assert_eq!(routed["overlap_tokens"], 8);
    assert_eq!(routed["url"], engine.url);
    assert_eq!(routed["candidates"].as_array().unwrap().len(), 2);
    assert!(world.affinity.list(10).await.unwrap().is_empty());
    assert!(!world.index.asked.lock().unwrap()[0].record);

    // Ten seconds of prefill, had it been sent.
    let long = json!({"model": "m", "token_ids": vec![7; 80_000], "conversation": "c"});
    world.client.post("/v1/route", &[], &long.to_string()).await;
    let targets = world.admin("targets").await;
    let targets = targets["targets"].as_array().unwrap();
    assert!(targets.iter().all(|it| it["pending_tokens"] == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_decision_binds_the_conversation() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let mut body = json!({"model": "m", "token_ids": [1, 2, 3, 4, 5], "conversation": {"id": "c"}});
    body["commit"] = true.into();
    let routed = world
        .client
        .post("/v1/route", &[], &body.to_string())
        .await
        .json();
    let told = json!({"decision": routed["id"]}).to_string();
    world.client.post("/v1/outcome", &[], &told).await;
    until_confirmed(&world, 1).await;
    let (_, rank) = turn(&world, &mut engine, &prompt(0..9)).await;
    assert_eq!(routed["dp_rank"].to_string(), rank.unwrap());
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn baselines_neither_read_nor_write_bindings() {
    let mut engine = Engine::start().await;
    for (policy, ranks) in [
        ("round_robin", [None, None]),
        ("target_round_robin", [Some("0"), Some("1")]),
    ] {
        let config = router_api::Config {
            policy: policy.parse().unwrap(),
            ..config()
        };
        let world = World::with(config, &[&engine]).await;
        for expected in ranks {
            let (_, rank) = turn(&world, &mut engine, &prompt(0..9)).await;
            assert_eq!(rank.as_deref(), expected, "under {policy}");
        }
        assert!(world.affinity.list(10).await.unwrap().is_empty());
        assert_eq!(
            world.admin("config").await["affinity"],
            json!({"default": "off"})
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_counts_from_its_decision_though_no_engine_has_answered() {
    const REQUESTS: usize = 40;
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..REQUESTS {
        let client = world.client.clone();
        let body = json!({"model": "m", "prompt": vec![number; 8_000]}).to_string();
        clients.spawn(async move { client.post("/v1/completions", &[], &body).await.status });
    }
    let mut waiting = Vec::new();
    for _ in 0..REQUESTS {
        waiting.push(engine.next().await);
    }
    let first = waiting.iter().filter(|it| it.rank() == Some("0")).count();
    assert!(
        first.abs_diff(REQUESTS - first) <= 1,
        "{first} of {REQUESTS} on the first rank"
    );
    for arrival in waiting {
        arrival.answer(200, "{}");
    }
    for status in clients.join_all().await {
        assert!(status.is_success());
    }
    world.until_nothing_is_left().await;
}
