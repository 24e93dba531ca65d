//! Requests that wait in the router while every target is past its limit.

use std::time::Duration;

use http::StatusCode;
use router_api::AdmissionConfig;

use crate::asked::{Asked, SERVED, admitting, number, occupy, one_each, prompt};
use crate::client::Answer;
use crate::engine::Engine;
use crate::world::World;

/// Whether the index is to remember what it was asked about last.
fn last_is_recorded(world: &World) -> bool {
    world.index.asked.lock().unwrap().last().unwrap().record
}

fn assert_refused(answer: &Answer, code: &str) {
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    let error = &answer.json()["error"];
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["code"], code);
    let message = answer.error();
    assert!(message.contains(&format!("try again in {seconds} s")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_burst_as_many_go_as_there_is_room_for_and_each_is_recorded_once() {
    const BURST: u32 = 24;
    let mut engine = Engine::start().await;
    let world = World::with(admitting(one_each()), &[&engine]).await;
    let mut asked = Asked::of(&world);
    for it in 1..=BURST {
        asked.send(&prompt(it, 9), &[]);
    }
    // Two threads may both find the last room.
    let waiting = || world.gauge("rankway_queue_waiting");
    world
        .until(async || f64::from(BURST) - 3.0 <= waiting())
        .await;
    for _ in 0..BURST {
        engine.next().await.answer(200, SERVED);
    }
    for _ in 0..BURST {
        assert_eq!(asked.answer().await.status, StatusCode::OK);
    }
    let asked_of_index = world.index.asked.lock().unwrap();
    let recorded = asked_of_index.iter().filter(|it| it.record);
    let mut prompts: Vec<_> = recorded.map(|it| it.hashes.last()).collect();
    assert_eq!(prompts.len(), BURST as usize);
    prompts.sort_unstable();
    prompts.dedup();
    assert_eq!(prompts.len(), BURST as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_gives_its_place_in_the_queue_back() {
    let mut engine = Engine::start().await;
    let admission = AdmissionConfig {
        max_waiting: 1,
        ..one_each()
    };
    let world = World::with(admitting(admission), &[&engine]).await;
    let mut asked = Asked::of(&world);
    let [first, second] = occupy(&mut asked, &mut engine, 9).await;
    let gone = asked.queue(&prompt(3, 9), &[]).await;
    gone.abort();
    asked.until_waiting(0.0).await;
    assert!(asked.answers.join_next().await.unwrap().is_err());

    asked.queue(&prompt(4, 9), &[]).await;
    first.answer(200, SERVED);
    let next = engine.next().await;
    assert_eq!(number(&next), 4);
    next.answer(200, SERVED);
    second.answer(200, SERVED);
    for _ in 0..3 {
        assert_eq!(asked.answer().await.status, StatusCode::OK);
    }
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_the_queue_full_is_told_when_to_come_again() {
    let mut engine = Engine::start().await;
    let admission = AdmissionConfig {
        max_waiting: 1,
        ..one_each()
    };
    let world = World::with(admitting(admission), &[&engine]).await;
    let routed = async |commit: bool| {
        let mut body = prompt(9, 9);
        body["commit"] = commit.into();
        world.client.post("/v1/route", &[], &body.to_string()).await
    };
    assert_eq!(routed(false).await.json()["would_wait"], false);
    let mut asked = Asked::of(&world);
    let _busy = occupy(&mut asked, &mut engine, 9).await;
    assert_eq!(routed(false).await.json()["would_wait"], true);
    assert!(!last_is_recorded(&world));
    assert_eq!(routed(true).await.json()["would_wait"], true);
    assert!(last_is_recorded(&world));

    asked.queue(&prompt(3, 9), &[]).await;
    asked.send(&prompt(4, 9), &[]);
    assert_refused(&asked.answer().await, "queue_full");
    assert!(
        !last_is_recorded(&world),
        "it has carried its prompt nowhere"
    );
    assert_refused(&routed(false).await, "queue_full");
    assert_refused(&routed(true).await, "queue_full");
    assert!(!last_is_recorded(&world));

    let refused = r#"rankway_queue_refused_total{cause="full"}"#;
    assert_eq!(world.metric(refused).await, Some(3.0));
    let ready = world.client.get("/readiness").await;
    assert_eq!(ready.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_waited_as_long_as_it_may_is_told_when_to_come_again() {
    let mut engine = Engine::start().await;
    let admission = AdmissionConfig {
        max_wait_ms: 100,
        ..one_each()
    };
    let world = World::with(admitting(admission), &[&engine]).await;
    let mut asked = Asked::of(&world);
    let _busy = occupy(&mut asked, &mut engine, 9).await;
    asked.send(&prompt(3, 9), &[]);
    assert_refused(&asked.answer().await, "queue_timeout");
    asked.until_waiting(0.0).await;
    let refused = r#"rankway_queue_refused_total{cause="timeout"}"#;
    assert_eq!(world.metric(refused).await, Some(1.0));
    assert!(0.1 <= world.gauge("rankway_queue_seconds"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_waited_goes_where_its_prefix_is_by_then() {
    let mut engine = Engine::start().await;
    let world = World::with(admitting(one_each()), &[&engine]).await;
    let mut asked = Asked::of(&world);
    let [first, second] = occupy(&mut asked, &mut engine, 9).await;
    // Five seconds of prefill.
    asked.queue(&prompt(3, 40_000), &[]).await;
    let holder = second.rank().unwrap().to_owned();
    world.index.hold(&format!("w1#1/{holder}"), 9_000);

    first.answer(200, SERVED);

    let next = engine.next().await;
    assert_eq!((number(&next), next.rank()), (3, Some(holder.as_str())));
    let decided = world.admin("decisions/last").await;
    assert_eq!(decided["overlap_tokens"], 36_000);
    // It is counted among those that carried its prompt once, when it went.
    let asked_of_it = world.index.asked.lock().unwrap();
    let records: Vec<bool> = asked_of_it
        .iter()
        .filter(|it| it.hashes.blocks() == 10_000)
        .map(|it| it.record)
        .collect();
    assert_eq!(records, [false, true]);
    drop(asked_of_it);
    next.answer(200, SERVED);
    second.answer(200, SERVED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_holds_through_the_wait() {
    let mut engine = Engine::start().await;
    let world = World::with(admitting(one_each()), &[&engine]).await;
    let mut asked = Asked::of(&world);
    let conversation = [("x-rankway-conversation", "c")];
    asked.send(&prompt(7, 900), &conversation);
    let turn = engine.next().await;
    let home = turn.rank().unwrap().to_owned();
    turn.answer(200, SERVED);
    assert_eq!(asked.answer().await.status, StatusCode::OK);
    world.until_nothing_is_left().await;

    let busy = occupy(&mut asked, &mut engine, 9).await;
    asked.queue(&prompt(7, 1_000), &conversation).await;
    let [mut here, mut elsewhere] = busy.map(Some);
    if here.as_ref().unwrap().rank() != Some(home.as_str()) {
        std::mem::swap(&mut here, &mut elsewhere);
    }
    elsewhere.unwrap().answer(200, SERVED);

    let next = engine.next().await;
    assert_eq!((number(&next), next.rank()), (7, Some(home.as_str())));
    let decided = world.admin("decisions/last").await;
    assert_eq!(decided["reason"], "bound");
    next.answer(200, SERVED);
    here.unwrap().answer(200, SERVED);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_in_which_nothing_waits_gets_more() {
    let mut engine = Engine::start().await;
    engine.say_waiting(1);
    let admission = AdmissionConfig {
        // More than the one request that waits there already is thought to take.
        limit_ms: 20_000,
        ..AdmissionConfig::default()
    };
    let world = World::with(admitting(admission), &[&engine]).await;
    let mut asked = Asked::of(&world);
    // A minute of prefill, by what is known of a new engine.
    let _busy = occupy(&mut asked, &mut engine, 480_000).await;
    asked.queue(&prompt(3, 9), &[]).await;

    engine.say_waiting(0);

    assert_eq!(number(&engine.next().await), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_router_has_sent_is_waited_for_too() {
    let mut engine = Engine::start().await;
    let mut world = World::with(admitting(one_each()), &[&engine]).await;
    let (other, _shutdown) = world.another_with(admitting(one_each()), "router-2").await;
    let mut asked = Asked::of(&world);
    let busy = occupy(&mut asked, &mut engine, 9).await;
    let route = prompt(3, 9).to_string();
    world
        .until(async || {
            let routed = other.post("/v1/route", &[], &route).await.json();
            routed["would_wait"] == true
        })
        .await;
    let sent = prompt(3, 9).to_string();
    let waiting = other.post("/v1/completions", &[], &sent);
    let served = async {
        for arrival in busy {
            arrival.answer(200, SERVED);
        }
        let next = engine.next().await;
        assert_eq!(number(&next), 3);
        next.answer(200, SERVED);
    };
    let (answer, ()) = tokio::join!(waiting, served);
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_answers_those_that_wait() {
    let mut engine = Engine::start().await;
    let mut world = World::with(admitting(one_each()), &[&engine]).await;
    let mut asked = Asked::of(&world);
    let busy = occupy(&mut asked, &mut engine, 9).await;
    asked.queue(&prompt(3, 9), &[]).await;
    asked.queue(&prompt(4, 9), &[]).await;

    world.shutdown.cancel();

    for _ in 0..2 {
        let answer = asked.answer().await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.header("retry-after"), Some("5"));
        assert_eq!(answer.json()["error"]["code"], "unavailable");
    }
    for arrival in busy {
        arrival.answer(200, SERVED);
        assert_eq!(asked.answer().await.status, StatusCode::OK);
    }
    drop(asked);
    let ended = tokio::time::timeout(Duration::from_secs(20), world.tasks.join_next());
    ended.await.unwrap().unwrap().unwrap().unwrap();
}
