//! Who goes first of those that wait.

use std::num::NonZeroU32;

use http::StatusCode;
use router_api::{Config, SaltSecret, TenantConfig};
use serde_json::{Value, json};

use crate::asked::{Asked, SERVED, admitting, number, occupy, one_each, prompt};
use crate::engine::Engine;
use crate::world::World;

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
