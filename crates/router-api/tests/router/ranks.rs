//! Engines that do not run what they are asked to where they are asked to: how it shows, and what follows.

use std::time::Duration;

use affinity::Evidence;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::dispatch::{NO_RANK, RAN};
use crate::engine::{Arrival, Engine};
use crate::index::Located;
use crate::world::World;

/// What an engine answers, with so many tokens found in its cache.
fn answer(cached: u32) -> String {
    let details = json!({"cached_tokens": cached});
    let usage =
        json!({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": details});
    json!({"usage": usage}).to_string()
}

/// A turn of conversation `c` whose prompt nobody has carried before.
async fn turn(
    client: &Client,
    engine: &mut Engine,
    reply: impl FnOnce(Arrival),
) -> (Answer, Option<u32>) {
    let body = json!({"model": "m", "prompt": (0..9).collect::<Vec<u32>>()}).to_string();
    let headers = [("x-rankway-conversation", "c")];
    let engine_side = async {
        let arrival = engine.next().await;
        let rank = arrival.rank().map(|it| it.parse().unwrap());
        reply(arrival);
        rank
    };
    tokio::join!(client.post("/v1/completions", &headers, &body), engine_side)
}

/// Runs on the other of two ranks, and says so.
fn on_the_other(arrival: Arrival) {
    let asked: u32 = arrival.rank().unwrap().parse().unwrap();
    arrival.answer_with(200, (RAN, &(1 - asked).to_string()), answer(0));
}

/// Runs where it is asked to, and says so.
fn honest(arrival: Arrival) {
    let asked = arrival.rank().unwrap().to_owned();
    arrival.answer_with(200, (RAN, &asked), answer(0));
}

fn silent_of_it(arrival: Arrival) {
    arrival.answer(200, answer(0));
}

async fn explained(world: &World, answer: &Answer) -> Value {
    let id = answer.header("x-rankway-decision").unwrap();
    world.admin(&format!("decisions/{id}")).await
}

fn faults(rank: u32, cause: &str) -> String {
    format!(r#"rankway_rank_faults_total{{cause="{cause}",dp_rank="{rank}",worker="w1"}}"#)
}

const UNTRUSTED: &str = r#"rankway_rank_untrusted{endpoint="completions",worker="w1"}"#;

async fn findings(client: &Client) -> Value {
    client.get("/readiness").await.json()["findings"]["router"].clone()
}

async fn until_bound_to(world: &World, rank: u32, evidence: Evidence) {
    world
        .until(async || {
            let bound = world.affinity.list(10).await.unwrap();
            bound.iter().any(|it| {
                it.binding.target.dp_rank.get() == rank && it.binding.evidence == evidence
            })
        })
        .await;
}

/// BC-07: an engine that runs a later turn elsewhere than it was asked to.
#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_rank_is_found_by_the_answer_and_the_binding_follows_it_once() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (first, asked) = turn(&world.client, &mut engine, on_the_other).await;
    let asked = asked.unwrap();
    assert_eq!(world.metric(&faults(asked, "ignored")).await, Some(1.0));
    let ran = explained(&world, &first).await["ran"].clone();
    let seen = json!({"dp_rank": 1 - asked, "evidence": "answer", "fault": "ignored"});
    assert_eq!(ran, seen);
    until_bound_to(&world, 1 - asked, Evidence::Answer).await;
    let conflicts = r#"rankway_binding_conflicts_total{worker="w1"}"#;
    world.until_metric(conflicts, 1.0).await;
    world
        .until(async || findings(&world.client).await.is_array())
        .await;
    let named = format!("worker w1, rank {asked}: ignored (completions)");
    assert_eq!(findings(&world.client).await, json!([named]));
    assert_eq!(world.metric(UNTRUSTED).await, Some(0.0), "it may be chance");

    // The second in a row: the binding stays, and nobody believes the ranks any more.
    let (_, again) = turn(&world.client, &mut engine, on_the_other).await;
    assert_eq!(again, Some(1 - asked));
    world.until_metric(conflicts, 2.0).await;
    world.until_metric(UNTRUSTED, 1.0).await;
    let (third, again) = turn(&world.client, &mut engine, honest).await;
    assert_eq!(again, Some(1 - asked), "the rank is still asked for");
    assert_eq!(third.header("x-rankway-degraded"), Some("rank_untrusted"));
    let decision = explained(&world, &third).await;
    assert_eq!(decision["degraded"], json!(["rank_untrusted"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_proves_itself_by_turns_that_chance_does_not_explain() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    for _ in 0..2 {
        turn(&world.client, &mut engine, on_the_other).await;
    }
    world.until_metric(UNTRUSTED, 1.0).await;
    for _ in 0..7 {
        let (answer, _) = turn(&world.client, &mut engine, honest).await;
        assert_eq!(answer.header("x-rankway-degraded"), Some("rank_untrusted"));
    }
    let (answer, _) = turn(&world.client, &mut engine, honest).await;
    assert_eq!(answer.header("x-rankway-degraded"), None);
    world.until_metric(UNTRUSTED, 0.0).await;
    world
        .until(async || findings(&world.client).await.is_null())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_rank_is_found_by_the_events_of_the_rank_that_ran() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (first, asked) = turn(&world.client, &mut engine, silent_of_it).await;
    let asked = asked.unwrap();
    world.index.locate(Located::On(vec![1 - asked]));
    world.until_metric(&faults(asked, "ignored"), 1.0).await;
    until_bound_to(&world, 1 - asked, Evidence::Event).await;
    let ran = explained(&world, &first).await["ran"].clone();
    let seen = json!({"dp_rank": 1 - asked, "evidence": "event", "fault": "ignored"});
    assert_eq!(ran, seen);

    world.index.locate(Located::On(vec![asked]));
    let (_, again) = turn(&world.client, &mut engine, silent_of_it).await;
    assert_eq!(again, Some(1 - asked));
    world.until_metric(UNTRUSTED, 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_others_carried_or_several_hold_show_nothing() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    world.index.hold("w1#1/0", 2);
    world.index.locate(Located::On(vec![1]));
    turn(&world.client, &mut engine, silent_of_it).await;
    world.index.hold("w1#1/0", 1);
    world.index.locate(Located::On(vec![0, 1]));
    let (shown, _) = turn(&world.client, &mut engine, silent_of_it).await;
    world
        .until(async || explained(&world, &shown).await["ran"].is_object())
        .await;
    let ran = explained(&world, &shown).await["ran"].clone();
    assert_eq!(
        ran,
        json!({"dp_rank": 0, "evidence": "event", "fault": null})
    );
    assert_eq!(world.gauge("rankway_rank_faults_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_announces_late_is_told_from_one_that_never_does() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (_, asked) = turn(&world.client, &mut engine, silent_of_it).await;
    let asked = asked.unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    world.index.locate(Located::On(vec![asked]));
    world.until_metric(&faults(asked, "late"), 1.0).await;
    world.index.locate(Located::InVain);
    turn(&world.client, &mut engine, silent_of_it).await;
    world.until_metric(&faults(asked, "silent"), 1.0).await;
    let named = [
        format!("worker w1, rank {asked}: silent (completions)"),
        format!("worker w1, rank {asked}: late (completions)"),
    ];
    world
        .until(async || findings(&world.client).await == json!(named))
        .await;
    assert_eq!(world.metric(UNTRUSTED).await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_turn_that_finds_what_was_never_announced_shows_the_silence_at_once() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (_, asked) = turn(&world.client, &mut engine, silent_of_it).await;
    let found = |arrival: Arrival| arrival.answer(200, answer(4));
    let silent = faults(asked.unwrap(), "silent");
    turn(&world.client, &mut engine, found).await;
    assert_eq!(world.metric(&silent).await, None, "it is not overdue yet");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    turn(&world.client, &mut engine, found).await;
    assert_eq!(world.metric(&silent).await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_an_answer_names_is_late_or_silent_all_the_same() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (first, asked) = turn(&world.client, &mut engine, honest).await;
    let asked = asked.unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    world.index.locate(Located::On(vec![asked]));
    world.until_metric(&faults(asked, "late"), 1.0).await;
    let ran = explained(&world, &first).await["ran"].clone();
    let seen = json!({"dp_rank": asked, "evidence": "answer", "fault": "late"});
    assert_eq!(ran, seen);
    world.index.locate(Located::InVain);
    turn(&world.client, &mut engine, honest).await;
    world.until_metric(&faults(asked, "silent"), 1.0).await;
    assert_eq!(world.metric(UNTRUSTED).await, Some(0.0));

    world.index.locate(Located::On(vec![asked]));
    turn(&world.client, &mut engine, honest).await;
    world
        .until(async || findings(&world.client).await.is_null())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_silence_of_an_ignored_rank_is_that_of_the_rank_that_ran() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (_, asked) = turn(&world.client, &mut engine, on_the_other).await;
    let ran = 1 - asked.unwrap();
    until_bound_to(&world, ran, Evidence::Answer).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let found = |arrival: Arrival| {
        arrival.answer_with(200, (RAN, &ran.to_string()), answer(4));
    };
    let (_, again) = turn(&world.client, &mut engine, found).await;
    assert_eq!(again, Some(ran));
    assert_eq!(world.metric(&faults(ran, "silent")).await, Some(1.0));
    assert_eq!(world.metric(&faults(1 - ran, "silent")).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_announces_other_prompts_is_not_silent() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let (first, asked) = turn(&world.client, &mut engine, silent_of_it).await;
    let tail = world.index.asked.lock().unwrap()[0].hashes.last().unwrap();
    let asked = asked.unwrap();
    world.index.locate(Located::OnBut(asked, tail));
    let body = json!({"model": "m", "prompt": (50..60).collect::<Vec<u32>>()}).to_string();
    let headers = [("x-rankway-conversation", "c")];
    let engine_side = async { engine.next().await.answer(200, answer(0)) };
    let client = world.client.post("/v1/completions", &headers, &body);
    let (second, ()) = tokio::join!(client, engine_side);
    let ran = async |answer: &Answer| explained(&world, answer).await["ran"].clone();
    world
        .until(async || ran(&second).await["evidence"] == "event")
        .await;
    world.index.locate(Located::InVain);
    world.until(async || ran(&first).await.is_object()).await;
    assert_eq!(world.metric(&faults(asked, "silent")).await, None);
}

/// Takes requests until one is to be answered, and refuses the ranks of the others.
async fn refuse_ranks(engine: &mut Engine, refused: &[&str]) {
    loop {
        let arrival = engine.next().await;
        match arrival.rank() {
            Some(rank) if refused.contains(&rank) => {
                arrival.answer_with(400, (NO_RANK, "out of range"), "{}");
            }
            _ => return arrival.answer(200, "{}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_rank_is_avoided_at_its_endpoint_and_its_siblings_are_tried() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    // Enough that no near tie hides it.
    world.index.hold("w1#1/0", 500);
    let body = json!({"model": "m", "prompt": (0..2_001).collect::<Vec<u32>>()}).to_string();
    let mut send = async |path: &str, refused: &[&str]| {
        let client = world.client.post(path, &[], &body);
        tokio::join!(client, refuse_ranks(&mut engine, refused)).0
    };
    let answer = send("/v1/completions", &["0"]).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.header("x-rankway-dp-rank"), Some("1"));
    assert_eq!(world.metric(&faults(0, "refused")).await, Some(1.0));

    send("/v1/completions", &["0"]).await;
    let decision = world.admin("decisions/last").await;
    let candidates = decision["candidates"].as_array().unwrap();
    let barred: Vec<Value> = candidates.iter().map(|it| it["barred"].clone()).collect();
    assert_eq!(json!(barred), json!(["failed_lately", null]));
    assert_eq!(world.metric(&faults(0, "refused")).await, Some(1.0));
    // Of another endpoint it says nothing.
    let answer = send("/v1/chat/completions", &[]).await;
    assert_eq!(answer.header("x-rankway-dp-rank"), Some("0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_refuses_its_ranks_is_left_for_another() {
    let (mut first, mut second) = (Engine::start().await, Engine::start().await);
    let world = World::before(&[&first, &second]).await;
    world.index.hold("w1#1/0", 500);
    let body = json!({"model": "m", "prompt": (0..2_001).collect::<Vec<u32>>()}).to_string();
    let engines = async {
        tokio::select! {
            () = refuse_ranks(&mut first, &["0", "1"]) => unreachable!("it refuses all"),
            () = refuse_ranks(&mut second, &[]) => {}
        }
    };
    let client = world.client.post("/v1/completions", &[], &body);
    let (answer, ()) = tokio::join!(client, engines);
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.header("x-rankway-worker"), Some("w2"));
    assert_eq!(world.metric(&faults(0, "refused")).await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn routers_share_what_they_have_found_for_as_long_as_the_finder_is_there() {
    let mut engine = Engine::start().await;
    let mut world = World::before(&[&engine]).await;
    let (other, shutdown) = world.another("router-2").await;
    let degraded = async |engine: &mut Engine| {
        let (answer, _) = turn(&world.client, engine, silent_of_it).await;
        answer.header("x-rankway-degraded").map(str::to_owned)
    };
    assert_eq!(degraded(&mut engine).await, None);
    for _ in 0..2 {
        turn(&other, &mut engine, on_the_other).await;
    }
    world.until_metric(UNTRUSTED, 1.0).await;
    let marked = degraded(&mut engine).await;
    assert_eq!(marked.as_deref(), Some("rank_untrusted"));
    assert!(findings(&other).await.is_array());
    assert!(
        findings(&world.client).await.is_null(),
        "it is the finder's to explain"
    );
    shutdown.cancel();
    world.until_metric(UNTRUSTED, 0.0).await;
    assert_eq!(degraded(&mut engine).await, None);
}
