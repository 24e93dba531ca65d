//! Conversations whose engine chooses the rank.

use affinity::{BindingState, Evidence, Owner};
use contracts::rpc::Bound;
use router_api::Config;
use serde_json::{Value, json};

use crate::dispatch::RAN;
use crate::engine::Engine;
use crate::world::{World, config};

fn engine_owned() -> Config {
    Config {
        rank_source: Some(Owner::Engine),
        ..config()
    }
}

/// One turn, which names `ran` where it is told; the rank that was asked for.
async fn turn(world: &World, engine: &mut Engine, tokens: u32, ran: Option<u32>) -> Option<String> {
    let body = json!({"model": "m", "prompt": (0..tokens).collect::<Vec<u32>>()}).to_string();
    let headers = [("x-rankway-conversation", "c")];
    let answer = world.client.post("/v1/completions", &headers, &body);
    let serve = async {
        let arrival = engine.next().await;
        let rank = arrival.rank().map(str::to_owned);
        let usage = json!({"usage": {"prompt_tokens": tokens, "completion_tokens": 1}}).to_string();
        match ran {
            Some(ran) => arrival.answer_with(200, (RAN, &ran.to_string()), usage),
            None => arrival.answer(200, usage),
        }
        rank
    };
    let (answer, rank) = tokio::join!(answer, serve);
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.header("x-rankway-degraded"), None);
    world.until_nothing_is_left().await;
    rank
}

/// The binding, once `so`.
async fn bound(world: &World, so: impl Fn(&Bound) -> bool) -> Bound {
    let listed = async || world.affinity.list(2).await.unwrap();
    world
        .until(async || listed().await.first().is_some_and(&so))
        .await;
    listed().await.swap_remove(0)
}

/// BC-08: the router would choose another rank, and the engine reports its own on every turn.
#[tokio::test(flavor = "multi_thread")]
async fn no_rank_is_sent_and_the_binding_is_where_the_engine_says() {
    let mut engine = Engine::tensorrt_llm().await;
    let world = World::with(engine_owned(), &[&engine]).await;
    for number in 1..=6 {
        let rank = turn(&world, &mut engine, 4 * number + 1, Some(1)).await;
        assert_eq!(rank, None, "turn {number}");
        let bound = bound(&world, |it| it.binding.turns == number).await;
        let binding = bound.binding;
        assert_eq!(binding.target.to_string(), "w1#1/1");
        assert_eq!(
            (binding.owner, binding.evidence, binding.moved),
            (Owner::Engine, Evidence::Answer, None)
        );
        assert_eq!(binding.held.get(), u64::from(4 * number));
    }
    assert_eq!(world.gauge("rankway_binding_conflicts_total"), 0.0);
    assert_eq!(world.gauge("rankway_rank_faults_total"), 0.0);
    let decision = world.admin("decisions/last").await;
    assert_eq!(
        (&decision["reason"], &decision["binding"]),
        (&json!("bound"), &json!("keep"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_nothing_shows_is_unknown_and_never_a_conflict() {
    let mut engine = Engine::tensorrt_llm().await;
    let world = World::with(engine_owned(), &[&engine]).await;
    for tokens in [9, 13] {
        assert_eq!(turn(&world, &mut engine, tokens, None).await, None);
    }
    let is_served = |it: &Bound| it.binding.turns == 2;
    let silent = bound(&world, is_served).await.binding;
    assert_eq!(silent.state, BindingState::Confirmed);
    assert!(!silent.knows_rank());
    let shown = world.admin("bindings/c").await;
    assert_eq!(
        (&shown["worker"], &shown["dp_rank"], &shown["target"]),
        (&json!("w1"), &json!(null), &json!(null))
    );
    // At last an answer names it, whichever it is.
    let other = 1 - silent.target.dp_rank.get();
    turn(&world, &mut engine, 17, Some(other)).await;
    let learnt = bound(&world, |it| it.binding.knows_rank()).await.binding;
    assert_eq!(learnt.target.dp_rank.get(), other);
    assert_eq!(world.gauge("rankway_binding_conflicts_total"), 0.0);
    // An engine that then changes its mind is followed, and that is counted.
    turn(&world, &mut engine, 21, Some(1 - other)).await;
    bound(&world, |it| it.binding.target.dp_rank.get() != other).await;
    assert_eq!(world.gauge("rankway_binding_conflicts_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_turn_that_fails_leaves_no_binding() {
    let mut engine = Engine::tensorrt_llm().await;
    let world = World::with(engine_owned(), &[&engine]).await;
    let body = json!({"model": "m", "prompt": [1, 2, 3, 4, 5]}).to_string();
    let headers = [("x-rankway-conversation", "c")];
    let answer = world.client.post("/v1/completions", &headers, &body);
    let serve = async {
        let arrival = engine.next().await;
        assert_eq!(arrival.rank(), None);
        arrival.answer(400, r#"{"error":{"message":"no"}}"#);
    };
    let (answer, ()) = tokio::join!(answer, serve);
    assert_eq!(answer.status.as_u16(), 400);
    world
        .until(async || world.affinity.list(2).await.unwrap().is_empty())
        .await;
}

/// What `path` answers to `body`, an error, in words.
async fn refused(world: &World, path: &str, body: Value) -> String {
    let answer = world.admin_post(path, &body).await;
    assert_eq!(answer.status.as_u16(), 400, "{path}");
    let error = answer.json();
    error["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_that_keeps_conversations_would_not_heed_is_refused() {
    let mut engine = Engine::tensorrt_llm().await;
    let world = World::with(engine_owned(), &[&engine]).await;
    turn(&world, &mut engine, 9, Some(1)).await;
    bound(&world, |it| it.binding.turns == 1).await;
    let why = refused(&world, "bindings/c/move", json!({"to": "w1/0"})).await;
    assert!(
        why.ends_with("whose engine chooses among its ranks"),
        "{why}"
    );
    let why = refused(&world, "workers/w1/ranks/0/drain", json!({})).await;
    assert!(
        why.contains("chooses among its ranks: drain all of it"),
        "{why}"
    );

    let mut engine = Engine::tensorrt_llm_that_keeps_first_ranks().await;
    let config = Config {
        rank_source: Some(Owner::Router),
        ..config()
    };
    let world = World::with(config, &[&engine]).await;
    let rank: u32 = turn(&world, &mut engine, 9, None)
        .await
        .unwrap()
        .parse()
        .unwrap();
    bound(&world, |it| it.binding.turns == 1).await;
    let to = json!({"to": format!("w1/{}", 1 - rank)});
    let why = refused(&world, "bindings/c/move", to).await;
    assert!(
        why.ends_with("whose engine keeps a conversation on its first rank"),
        "{why}"
    );
    let why = refused(&world, "workers/w1/ranks/0/drain?move=true", json!({})).await;
    assert!(why.contains("drain without moving what is there"), "{why}");
    let kept = world
        .admin_post("workers/w1/ranks/0/drain", &json!({}))
        .await;
    assert_eq!(kept.status.as_u16(), 200);
}
