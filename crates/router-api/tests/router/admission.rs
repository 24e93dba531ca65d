//! Requests that wait in the router while every target is past its limit.

use std::num::NonZeroU32;
use std::time::Duration;

use contracts::rpc::OverlapRequest;
use http::StatusCode;
use router_api::{AdmissionConfig, Config, SaltSecret, TenantConfig};
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};

use crate::client::Answer;
use crate::engine::{Arrival, Engine};
use crate::world::{World, config};

const SERVED: &str = r#"{"usage":{"prompt_tokens":9,"completion_tokens":4}}"#;

/// One request at a time on each rank.
fn one_each() -> AdmissionConfig {
    AdmissionConfig {
        limit_ms: 0,
        limit_requests: NonZeroU32::new(1),
        ..AdmissionConfig::default()
    }
}

fn admitting(admission: AdmissionConfig) -> Config {
    Config {
        admission,
        ..config()
    }
}

/// A prompt of its own for each number.
fn prompt(number: u32, tokens: u32) -> Value {
    let first = number * 1_000_000;
    json!({"model": "m", "prompt": (first..first + tokens).collect::<Vec<u32>>()})
}

/// The number of the prompt that has arrived.
fn number(arrival: &Arrival) -> u64 {
    let body: Value = serde_json::from_slice(&arrival.body).unwrap();
    body["prompt"][0].as_u64().unwrap() / 1_000_000
}

/// Requests on their way, and what was answered.
struct Asked<'a> {
    world: &'a World,
    answers: JoinSet<Answer>,
}

impl<'a> Asked<'a> {
    fn of(world: &'a World) -> Self {
        Self {
            world,
            answers: JoinSet::new(),
        }
    }

    fn send(&mut self, body: &Value, headers: &[(&str, &str)]) -> AbortHandle {
        let client = self.world.client.clone();
        let body = body.to_string();
        let owned = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let owned: Vec<(String, String)> = owned.collect();
        self.answers.spawn(async move {
            let headers = owned.iter().map(|it| (it.0.as_str(), it.1.as_str()));
            let headers: Vec<(&str, &str)> = headers.collect();
            client.post("/v1/completions", &headers, &body).await
        })
    }

    /// Sends one that will wait, once it does.
    async fn queue(&mut self, body: &Value, headers: &[(&str, &str)]) -> AbortHandle {
        let before = self.world.gauge("rankway_queue_waiting");
        let sent = self.send(body, headers);
        self.until_waiting(before + 1.0).await;
        sent
    }

    async fn until_waiting(&self, count: f64) {
        let waiting = async || self.world.gauge("rankway_queue_waiting") == count;
        self.world.until(waiting).await;
    }

    /// Whatever is answered next.
    async fn answer(&mut self) -> Answer {
        crate::soon(self.answers.join_next())
            .await
            .unwrap()
            .unwrap()
    }
}

/// Both ranks of the engine have a request.
async fn occupy(asked: &mut Asked<'_>, engine: &mut Engine, tokens: u32) -> [Arrival; 2] {
    asked.send(&prompt(1, tokens), &[]);
    let first = engine.next().await;
    asked.send(&prompt(2, tokens), &[]);
    let second = engine.next().await;
    assert_ne!(first.rank(), second.rank());
    [first, second]
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

#[tokio::test(flavor = "multi_thread")]
async fn those_that_wait_go_by_priority_and_say_how_long_they_waited() {
    let mut engine = Engine::start().await;
    let world = World::with(admitting(one_each()), &[&engine]).await;
    let mut asked = Asked::of(&world);
    let mut busy = Vec::from(occupy(&mut asked, &mut engine, 9).await);
    asked
        .queue(&prompt(3, 9), &[("x-rankway-priority", "-10")])
        .await;
    asked.queue(&prompt(4, 9), &[]).await;
    asked
        .queue(&prompt(5, 9), &[("x-rankway-priority", "10")])
        .await;
    assert_eq!(
        world
            .metric(r#"rankway_queue_waiting{priority="-10"}"#)
            .await,
        Some(1.0)
    );

    for expected in [5, 4, 3] {
        busy.remove(0).answer(200, SERVED);
        let went = asked.answer().await;
        let waited = went.header("x-rankway-queue-ms").unwrap();
        assert!(waited.parse::<u64>().is_ok(), "{waited}");
        let next = engine.next().await;
        assert_eq!(number(&next), expected);
        busy.push(next);
    }
    asked.until_waiting(0.0).await;
    let last = world.admin("decisions/last").await;
    assert!(0.0 < last["queued_seconds"].as_f64().unwrap());
    assert!(0.0 < world.gauge("rankway_queue_seconds"));
    assert_eq!(world.gauge("rankway_queue_refused_total"), 0.0);
    for arrival in busy {
        arrival.answer(200, SERVED);
        assert_eq!(asked.answer().await.status, StatusCode::OK);
    }
    world.until_nothing_is_left().await;
}

/// `a` may ask for no priority above the normal one, `b` for some, and `c` has three times their share.
fn tenants() -> Config {
    let tenant = |name: &str| TenantConfig {
        keys: vec![name.parse().unwrap()],
        ..TenantConfig::new(name.parse().unwrap())
    };
    Config {
        tenants: vec![
            tenant("a"),
            TenantConfig {
                highest_priority: routing::admission::Priority::new(3).unwrap(),
                ..tenant("b")
            },
            TenantConfig {
                weight: NonZeroU32::new(3).unwrap(),
                ..tenant("c")
            },
        ],
        salt_secret: Some(SaltSecret::new("a secret of the tests")),
        ..admitting(one_each())
    }
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
async fn tenants_take_turns_by_their_weights() {
    let mut engine = Engine::start().await;
    let world = World::with(tenants(), &[&engine]).await;
    let mut asked = Asked::of(&world);
    let key = |name| [("x-api-key", name)];
    let mut busy = Vec::new();
    for first in [1, 2] {
        asked.send(&prompt(first, 900), &key("a"));
        busy.push(engine.next().await);
    }
    for (body, tenant) in [(3, "a"), (4, "a"), (5, "a"), (6, "c"), (7, "c"), (8, "c")] {
        asked.queue(&prompt(body, 900), &key(tenant)).await;
    }
    let mut order = Vec::new();
    for _ in 3..=8 {
        busy.remove(0).answer(200, SERVED);
        busy.push(engine.next().await);
        order.push(number(busy.last().unwrap()));
    }
    assert_eq!(order, [3, 6, 7, 8, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_priority_is_what_its_words_say_up_to_what_its_tenant_may_have() {
    let mut engine = Engine::start().await;
    let world = World::with(tenants(), &[&engine]).await;
    let mut asked = Asked::of(&world);
    let mut busy = Vec::new();
    for first in [1, 2] {
        asked.send(&prompt(first, 9), &[("x-api-key", "a")]);
        busy.push(engine.next().await);
    }
    let hinted = |priority: Value| {
        let mut body = prompt(3, 9);
        body["nvext"] = json!({"agent_hints": {"priority": priority}});
        body
    };
    let (own, foreign) = ("x-rankway-priority", "x-dynamo-request-priority");
    let none = hinted(Value::Null);
    for (tenant, header, body, expected, skipped) in [
        ("a", (own, "10"), &none, 0, 0.0),
        ("a", (own, " -4 "), &none, -4, 0.0),
        ("b", (own, "2"), &hinted(json!(-5)), 2, 0.0),
        ("b", (foreign, "99"), &none, 3, 0.0),
        ("b", (foreign, "-99"), &hinted(json!(1)), -10, 0.0),
        ("b", (foreign, "soon"), &hinted(json!(1)), 1, 1.0),
        ("b", ("x-none", ""), &hinted(json!("soon")), 0, 2.0),
        ("b", ("x-none", ""), &hinted(json!(0.5)), 0, 3.0),
    ] {
        let waiting = asked.queue(body, &[("x-api-key", tenant), header]).await;
        let line = format!(r#"rankway_queue_waiting{{priority="{expected}"}}"#);
        assert_eq!(world.metric(&line).await, Some(1.0), "{header:?} {body}");
        let skips = world.gauge("rankway_priorities_skipped_total");
        assert_eq!(skips, skipped);
        waiting.abort();
        asked.until_waiting(0.0).await;
    }
    for wrong in ["11", "-11", "1.5", "high", "", "99999999999999999999"] {
        let headers = [("x-api-key", "b"), (own, wrong)];
        let body = prompt(3, 9).to_string();
        let answer = world.client.post("/v1/completions", &headers, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{wrong}");
        assert_eq!(answer.json()["error"]["param"], own);
    }
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
async fn who_cannot_wait_or_not_longer_is_told_when_to_come_again() {
    let mut engine = Engine::start().await;
    let admission = AdmissionConfig {
        max_waiting: 1,
        max_wait_ms: 2_000,
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

    asked.queue(&prompt(3, 9), &[]).await;
    asked.send(&prompt(4, 9), &[]);
    assert_refused(&asked.answer().await, "queue_full");
    let recorded = |it: &OverlapRequest| it.record;
    assert!(
        !world
            .index
            .asked
            .lock()
            .unwrap()
            .last()
            .is_some_and(recorded),
        "it has carried its prompt nowhere"
    );
    assert_refused(&routed(false).await, "queue_full");
    assert_refused(&routed(true).await, "queue_full");

    // The first one waits as long as it may.
    assert_refused(&asked.answer().await, "queue_timeout");
    asked.until_waiting(0.0).await;
    let refused = |cause| format!(r#"rankway_queue_refused_total{{cause="{cause}"}}"#);
    assert_eq!(world.metric(&refused("full")).await, Some(3.0));
    assert_eq!(world.metric(&refused("timeout")).await, Some(1.0));
    let ready = world.client.get("/readiness").await;
    assert_eq!(ready.status, StatusCode::OK);
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
