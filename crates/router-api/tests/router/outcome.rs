//! Requests that somebody else dispatches: routed, committed to, and told of.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Answer;
use crate::engine::Engine;
use crate::world::World;

/// Whose prefill takes seconds by all that a new router knows, so that its reservation is seen.
const LONG: usize = 80_000;

impl World {
    async fn commit(&self, more: Value) -> Value {
        let mut body =
            json!({"model": "m", "token_ids": vec![7; LONG], "conversation": "c", "commit": true});
        merge(&mut body, more);
        let answer = self.client.post("/v1/route", &[], &body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        answer.json()
    }

    async fn tell(&self, routed: &Value, more: Value) -> Answer {
        let mut body = json!({"decision": routed["id"]});
        merge(&mut body, more);
        let body = body.to_string();
        self.client.post("/v1/outcome", &[], &body).await
    }

    /// Told, and taken.
    async fn settle(&self, routed: &Value, more: Value) -> Value {
        let answer = self.tell(routed, more).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        answer.json()
    }

    async fn pending(&self) -> u64 {
        self.of_targets("pending_tokens").await
    }

    async fn active(&self) -> u64 {
        self.of_targets("active").await
    }

    async fn of_targets(&self, field: &str) -> u64 {
        let targets = self.admin("targets").await;
        let targets = targets["targets"].as_array().unwrap().iter();
        targets.map(|it| it[field].as_u64().unwrap()).sum()
    }

    async fn bound(&self) -> Vec<Value> {
        let bindings = self.admin("bindings").await;
        bindings["bindings"].as_array().unwrap().clone()
    }
}

fn merge(body: &mut Value, more: Value) {
    let Value::Object(more) = more else { return };
    body.as_object_mut().unwrap().extend(more);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_decision_holds_its_place_until_its_outcome_is_told() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;

    let routed = world.commit(json!({})).await;
    assert_eq!(routed["lease_seconds"], 300);
    assert_eq!(routed["url"], engine.url);
    let rank = routed["dp_rank"].to_string();
    let headers = json!({"X-Data-Parallel-Rank": rank});
    assert_eq!(routed["send"], json!({"headers": headers, "fields": {}}));
    assert!(0 < world.pending().await);
    assert_eq!(world.active().await, 1);
    assert_eq!(world.gauge("rankway_target_inflight"), 1.0);
    assert_eq!(world.bound().await[0]["state"], "provisional");

    let begun = json!({"phase": "first_token", "worker": "w1", "ttft_ms": 1500});
    let begun = world.settle(&routed, begun).await;
    assert_eq!(begun["lease_seconds"], 300);
    assert_eq!(world.pending().await, 0);
    assert_eq!(world.active().await, 1);
    world
        .until(async || world.bound().await[0]["state"] == "confirmed")
        .await;
    assert_eq!(world.gauge("rankway_target_inflight"), 1.0);

    let done = json!({"prompt_tokens": LONG, "completion_tokens": 5, "cached_tokens": 64});
    let done = world.settle(&routed, done).await;
    assert_eq!(done["outcome"]["status"], "served");
    assert_eq!(done["outcome"]["ttft_ms"], 1500.0);
    assert_eq!(done["outcome"]["completion_tokens"], 5);
    assert_eq!(done["waterfall"]["levels"]["realised"], 64);
    assert_eq!(done["lease_seconds"], Value::Null);
    world.until_nothing_is_left().await;
    assert_eq!(world.active().await, 0);
    let totals = world.admin("waterfall").await;
    assert_eq!(totals["measured"]["requests"], 1);
    assert_eq!(totals["measured"]["levels"]["realised"], 64);

    let again = world.commit(json!({"messages": null})).await;
    assert_eq!(again["target"], routed["target"]);
    assert_eq!(again["binding"], "keep");
    world.settle(&again, json!({"status": "cancelled"})).await;
    world.until_nothing_is_left().await;
    assert_eq!(world.bound().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_told_twice_has_one_answer_and_counts_once() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let routed = world.commit(json!({})).await;
    let report = json!({"prompt_tokens": LONG, "cached_tokens": 8});

    let first = world.settle(&routed, report.clone()).await;
    let mut second = world.settle(&routed, report).await;
    let other = json!({"status": "failed", "phase": "done"});
    let third = world.settle(&routed, other).await;

    assert_eq!(first["repeated"], false);
    assert_eq!(second, third);
    assert_eq!(second["repeated"], true);
    second["repeated"] = false.into();
    assert_eq!(second, first);
    let totals = world.admin("waterfall").await;
    assert_eq!(totals["measured"]["requests"], 1);
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_tells_of_ends_by_its_lease_and_leaves_nothing() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let routed = world.commit(json!({"lease_seconds": 1})).await;
    assert_eq!(routed["lease_seconds"], 1);
    assert!(0 < world.pending().await);
    assert_eq!(world.active().await, 1);

    world.until_nothing_is_left().await;
    assert_eq!(world.active().await, 0);
    world.until(async || world.bound().await.is_empty()).await;

    assert_eq!(world.gauge("rankway_outcomes_expired_total"), 1.0);
    let late = world.tell(&routed, json!({})).await;
    assert_eq!(late.status, 404);
    assert!(late.error().contains("ended 1 s after"), "{}", late.error());
    assert_eq!(late.json()["error"]["code"], "decision_not_found");
    let decision = world.admin("decisions/last").await;
    assert_eq!(decision["outcome"]["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_of_the_first_token_renews_the_lease() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let routed = world.commit(json!({"lease_seconds": 4})).await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.settle(&routed, json!({"phase": "first_token"})).await;
    }
    let done = world.settle(&routed, json!({})).await;
    assert_eq!(done["outcome"]["status"], "served");
    assert_eq!(world.bound().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_failed_leaves_no_binding_and_its_place_is_avoided() {
    let (one, other) = (Engine::start().await, Engine::start().await);
    let world = World::before(&[&one, &other]).await;
    let routed = world.commit(json!({})).await;

    let failed = json!({"status": "unreachable", "worker": routed["worker"]});
    let answer = world.settle(&routed, failed).await;

    assert_eq!(answer["outcome"]["status"], "unreachable");
    assert_eq!(answer["waterfall"], Value::Null);
    assert!(world.bound().await.is_empty());
    let again = world.commit(json!({})).await;
    assert_ne!(again["worker"], routed["worker"]);
    world.settle(&again, json!({})).await;
    world.until_nothing_is_left().await;
    assert_eq!(world.bound().await[0]["worker"], again["worker"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rank_that_an_answer_names_is_where_the_conversation_is_bound() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let routed = world.commit(json!({})).await;
    let other = 1 - routed["dp_rank"].as_u64().unwrap();

    world.settle(&routed, json!({"dp_rank": other})).await;

    world
        .until(async || world.bound().await[0]["dp_rank"] == other)
        .await;
    let decision = world.admin("decisions/last").await;
    assert_eq!(decision["ran"]["dp_rank"], other);
    assert_eq!(decision["ran"]["fault"], "ignored");
    world.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_makes_no_sense_is_refused_and_a_right_one_may_follow() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let routed = world.commit(json!({})).await;
    for (report, says) in [
        (json!({"worker": "w2"}), "the decision is for worker w1"),
        (json!({"dp_rank": 2}), "worker w1 has no rank 2"),
        (
            json!({"prompt_tokens": 1, "cached_tokens": 2}),
            "no more cached",
        ),
        (json!({"cached_tokens": LONG + 1}), "no more cached"),
        (json!({"prompt_tokens": u64::MAX}), "prompt_tokens"),
        (json!({"ttft_ms": -1}), "ttft_ms"),
        (json!({"duration_ms": 1e300}), "duration_ms"),
        (json!({"status": "fine"}), "unknown variant"),
        (
            json!({"phase": "first_token", "status": "failed"}),
            "once it is done",
        ),
        (json!({"tokens": 1}), "unknown field"),
        (json!({"decision": "last"}), "decision"),
    ] {
        let refused = world.tell(&routed, report.clone()).await;
        assert_eq!(refused.status, 400, "{report}");
        assert!(
            refused.error().contains(says),
            "{report}: {}",
            refused.error()
        );
    }
    let unknown = json!({"decision": "0".repeat(32)});
    assert_eq!(world.tell(&routed, unknown).await.status, 404);
    let long = " ".repeat(70_000);
    let refused = world.client.post("/v1/outcome", &[], &long).await;
    assert_eq!(refused.status, 413);
    assert_eq!(world.bound().await[0]["state"], "provisional");

    world.settle(&routed, json!({})).await;
    world.until_nothing_is_left().await;

    let preview = world.commit(json!({"commit": false})).await;
    assert_eq!(preview["lease_seconds"], Value::Null);
    let refused = world.tell(&preview, json!({})).await;
    assert_eq!(refused.status, 404);
    for lease in [json!(0), json!(3601), json!("1"), json!(1.5)] {
        let body = json!({"model": "m", "prompt": [1], "commit": true, "lease_seconds": lease});
        let refused = world.client.post("/v1/route", &[], &body.to_string()).await;
        assert_eq!(refused.status, 400, "{lease}");
        assert!(refused.error().contains("from 1 to 3600"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_ends_gives_back_what_is_not_told_of() {
    let engine = Engine::start().await;
    let mut world = World::before(&[&engine]).await;
    world.commit(json!({})).await;
    let affinity = world.affinity.clone();
    assert_eq!(affinity.list(10).await.unwrap().len(), 1);

    world.shutdown.cancel();
    let mut ended = None;
    while ended.is_none() {
        // The first to end is the router.
        ended = crate::soon(world.tasks.join_next()).await;
    }

    ended.unwrap().unwrap().unwrap();
    assert!(affinity.list(10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_responses_is_kept_by_the_ids_that_are_told() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let route = async |previous: Option<&str>| {
        let mut body = json!({"model": "m", "input": "x", "commit": true});
        if let Some(previous) = previous {
            body["previous_response_id"] = previous.into();
        }
        let path = "/v1/route?path=/v1/responses";
        let answer = world.client.post(path, &[], &body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        answer.json()
    };
    let first = route(None).await;
    assert_eq!(first["endpoint"], "responses");
    let wrong = json!({"phase": "first_token", "response_id": "a\nb"});
    assert_eq!(world.tell(&first, wrong).await.status, 400);
    let begun = json!({"phase": "first_token", "response_id": "resp_1"});
    world.settle(&first, begun).await;
    world.settle(&first, json!({})).await;

    for (previous, id) in [("resp_1", "resp_2"), ("resp_2", "resp_3")] {
        let next = route(Some(previous)).await;
        assert_eq!(next["target"], first["target"], "after {previous}");
        assert_eq!(next["reason"], "bound", "after {previous}");
        world.settle(&next, json!({"response_id": id})).await;
    }
    world.until_nothing_is_left().await;

    let body = json!({"model": "m", "input": "x"}).to_string();
    let refused = world.client.post("/v1/route?path=/v1/x", &[], &body).await;
    assert_eq!(refused.status, 400);
    assert!(
        refused.error().contains("/v1/responses"),
        "{}",
        refused.error()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_racing_reports_one_is_taken() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    for status in ["served", "failed"] {
        let routed = world.commit(json!({})).await;
        let report = json!({"status": status, "prompt_tokens": LONG, "cached_tokens": 8});
        let reports = (0..8).map(|_| world.tell(&routed, report.clone()));
        let mut taken = 0;
        for answer in futures::future::join_all(reports).await {
            match answer.status.as_u16() {
                200 => taken += u32::from(answer.json()["repeated"] == false),
                status => assert_eq!(status, 409, "{}", answer.error()),
            }
        }
        assert_eq!(taken, 1, "{status}");
        let again = world.settle(&routed, report).await;
        assert_eq!(again["repeated"], true);
        assert_eq!(again["outcome"]["status"], status);
    }
    let totals = world.admin("waterfall").await;
    assert_eq!(totals["measured"]["requests"], 1);
    world.until_nothing_is_left().await;
}
