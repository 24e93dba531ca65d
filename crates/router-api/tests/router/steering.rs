//! What can be asked of engines: endpoints without ranks, engines without events, and clients' own wishes.

use affinity::Evidence;
use serde_json::{Value, json};
use worker_adapter::{EngineName, HeaderSpaceName, WorkerConfig};

use crate::client::Answer;
use crate::dispatch::RAN;
use crate::engine::{Arrival, Engine};
use crate::world::{World, config, workers};

async fn post(
    world: &World,
    engine: &mut Engine,
    path: &str,
    body: &Value,
    reply: impl FnOnce(&Arrival) -> (Option<u32>, String),
) -> (Answer, Option<String>) {
    let engine_side = async {
        let arrival = engine.next().await;
        assert_eq!(arrival.path, path);
        let rank = arrival.rank().map(str::to_owned);
        match reply(&arrival) {
            (Some(ran), body) => arrival.answer_with(200, (RAN, &ran.to_string()), body),
            (None, body) => arrival.answer(200, body),
        }
        rank
    };
    let headers = [("x-rankway-conversation", "c")];
    let body = body.to_string();
    tokio::join!(world.client.post(path, &headers, &body), engine_side)
}

fn prompt(tokens: u32) -> Value {
    json!({"model": "m", "prompt": (0..tokens).collect::<Vec<u32>>()})
}

fn usage(prompt: u32, cached: u32) -> String {
    let details = json!({"cached_tokens": cached});
    let usage =
        json!({"prompt_tokens": prompt, "completion_tokens": 1, "prompt_tokens_details": details});
    json!({"usage": usage}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_passes_and_embeddings_bind_nothing() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let input = json!({"model": "m", "input": "some text", "stream": true, "stream_options": {}});
    let messages = json!({"model": "m", "system": "s", "messages": [], "max_tokens": 1});
    for (path, body, bindings) in [
        ("/v1/embeddings", &input, 0),
        ("/v1/messages?beta=true", &messages, 1),
        ("/v1/responses", &input, 1),
    ] {
        let sent = body.to_string();
        let (answer, _) = post(&world, &mut engine, path, body, |arrival| {
            assert_eq!(arrival.body, sent, "{path} passes byte for byte");
            (None, "{}".to_owned())
        })
        .await;
        assert_eq!(answer.status.as_u16(), 200, "{path}");
        let degraded = answer.header("x-rankway-degraded").unwrap();
        assert!(degraded.contains("no_tokens"), "{path}: {degraded}");
        world.until_nothing_is_left().await;
        let bound = world.affinity.list(10).await.unwrap();
        assert_eq!(bound.len(), bindings, "{path}");
        let endpoint = world.admin("decisions/last").await["endpoint"].clone();
        assert_eq!(
            Some(endpoint.as_str().unwrap()),
            path.strip_prefix("/v1/")
                .and_then(|it| it.split('?').next())
        );
    }
    assert!(world.index.asked.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_takes_no_rank_is_asked_for_none_and_binds_by_what_it_shows() {
    let mut engine = Engine::start().await;
    let worker = WorkerConfig {
        header_space: Some(HeaderSpaceName::None),
        ..workers(&[&engine.url]).swap_remove(0)
    };
    let world = World::of(config(), vec![worker]).await;
    let path = "/v1/completions";
    let silent = |_: &Arrival| (None, usage(9, 0));
    let (answer, rank) = post(&world, &mut engine, path, &prompt(9), silent).await;
    assert_eq!(rank, None);
    assert_eq!(answer.header("x-rankway-worker"), Some("w1"));
    assert_eq!(answer.header("x-rankway-dp-rank"), None);
    let degraded = answer.header("x-rankway-degraded");
    assert_eq!(degraded, Some("rank_not_controlled"));
    world.until_nothing_is_left().await;
    assert!(world.affinity.list(10).await.unwrap().is_empty());

    post(&world, &mut engine, path, &prompt(13), |_| {
        (Some(1), usage(13, 0))
    })
    .await;
    world
        .until(async || {
            let bound = world.affinity.list(10).await.unwrap();
            bound.first().is_some_and(|it| {
                it.binding.target.to_string() == "w1#1/1"
                    && it.binding.evidence == Evidence::Answer
                    && it.binding.held.get() == 12
            })
        })
        .await;
    // What the engine chooses later moves nothing: nobody was asked.
    let (answer, rank) = post(&world, &mut engine, path, &prompt(17), |_| {
        (Some(0), usage(17, 0))
    })
    .await;
    assert_eq!(rank, None);
    let id = answer.header("x-rankway-decision").unwrap();
    let decision = world.admin(&format!("decisions/{id}")).await;
    assert_eq!(decision["reason"], "bound");
    world
        .until(async || {
            let decision = world.admin(&format!("decisions/{id}")).await;
            decision["ran"]["dp_rank"] == 0
        })
        .await;
    let bound = world.affinity.list(10).await.unwrap();
    assert_eq!(bound[0].binding.target.to_string(), "w1#1/1");
    assert_eq!(world.gauge("rankway_binding_conflicts_total"), 0.0);
    assert_eq!(world.gauge("rankway_rank_faults_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_events_a_conversation_keeps_its_rank_and_its_overlap_is_corrected() {
    let mut engine = Engine::start().await;
    let worker = WorkerConfig {
        kv_events: None,
        ..workers(&[&engine.url]).swap_remove(0)
    };
    let world = World::of(config(), vec![worker]).await;
    let path = "/v1/completions";
    let mut home = None;
    // Tokens of the prompt, what is presumed of it in blocks of four, and what the engine found: what it did not it
    // has computed since.
    for (tokens, presumed, found) in [(21, 0, 0), (33, 20, 20), (45, 32, 10), (57, 44, 44)] {
        let reply = |_: &Arrival| (None, usage(tokens, found));
        let (answer, rank) = post(&world, &mut engine, path, &prompt(tokens), reply).await;
        assert_eq!(answer.header("x-rankway-degraded"), Some("no_events"));
        assert_eq!(home.get_or_insert(rank.clone()), &rank);
        let overlap = answer.header("x-rankway-overlap-tokens");
        assert_eq!(overlap, Some(presumed.to_string().as_str()), "of {tokens}");
        let decision = world.admin("decisions/last").await;
        let candidates = decision["candidates"].as_array().unwrap();
        let chosen = candidates.iter().find(|it| it["chosen"] == true).unwrap();
        assert_eq!(chosen["presumed_tokens"], presumed);
        let lost = decision["waterfall"]["lost"]["sum"].as_i64().unwrap();
        assert_eq!(lost, i64::from(tokens - found / 4 * 4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_a_llama_cpp_are_ranks_that_hold_their_last_prompt() {
    let mut engine = Engine::llama_cpp().await;
    let worker = WorkerConfig {
        engine: Some(EngineName::LlamaCpp),
        kv_events: None,
        ..workers(&[&engine.url]).swap_remove(0)
    };
    let world = World::of(config(), vec![worker]).await;
    let chat =
        json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).to_string();
    let mut turn = async |conversation: &str, first: u32, blocks: u32| {
        // Blocks of 32 tokens, as nothing else is set.
        let tokens: Vec<u32> = (first..first + 32 * blocks + 1).collect();
        let prompt = u32::try_from(tokens.len()).unwrap();
        engine.tokenise_to(Some(tokens));
        let engine_side = async {
            let arrival = engine.next().await;
            let body: Value = serde_json::from_slice(&arrival.body).unwrap();
            arrival.answer(200, usage(prompt, 0));
            body["id_slot"].as_u64().unwrap()
        };
        let headers = [("x-rankway-conversation", conversation)];
        let client = world.client.post("/v1/chat/completions", &headers, &chat);
        let (answer, slot) = tokio::join!(client, engine_side);
        assert_eq!(answer.header("x-rankway-degraded"), Some("no_events"));
        let rank = answer.header("x-rankway-dp-rank").unwrap();
        assert_eq!(rank, slot.to_string());
        let overlap = answer.header("x-rankway-overlap-tokens").unwrap();
        (slot, overlap.parse::<u32>().unwrap())
    };
    let (slot, overlap) = turn("a", 0, 20).await;
    assert_eq!(overlap, 0);
    let (other, _) = turn("b", 5_000, 20).await;
    assert_ne!(other, slot, "a slot in use costs its prompt");
    assert_eq!(turn("a", 0, 30).await, (slot, 640));
    assert_eq!(turn("b", 5_000, 30).await, (other, 640));
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_in_a_body_are_the_routers_to_set() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = r#"{"model":"m", "id_slot": 1,"prompt":[1,2],"routed_dp_rank":1,"data_parallel_rank":0,"disagg_prefill_dp_rank":1}"#;
    let send = async |world: &World, engine: &mut Engine, left: &str| {
        let engine_side = async {
            let arrival = engine.next().await;
            assert_eq!(arrival.body, left);
            let rank = arrival.rank().map(str::to_owned);
            arrival.answer(200, "{}");
            rank
        };
        let client = world.client.post("/v1/completions", &[], body);
        tokio::join!(client, engine_side).1
    };
    send(&world, &mut engine, r#"{"model":"m", "prompt":[1,2]}"#).await;
    assert_eq!(world.gauge("rankway_client_targets_removed_total"), 1.0);
    drop(world);
    let config = router_api::Config {
        allow_client_target: true,
        ..config()
    };
    let world = World::with(config, &[&engine]).await;
    let left = r#"{"model":"m", "prompt":[1,2],"disagg_prefill_dp_rank":1}"#;
    let rank = send(&world, &mut engine, left).await;
    assert_eq!(rank.as_deref(), Some("1"));
    let wrong = r#"{"model":"m","prompt":[1],"routed_dp_rank":"x"}"#;
    let answer = world.client.post("/v1/completions", &[], wrong).await;
    assert_eq!(answer.status.as_u16(), 400);
    assert_eq!(answer.error(), r#""\"x\"" is not a rank"#);
}
