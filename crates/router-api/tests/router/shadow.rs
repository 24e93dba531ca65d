//! A second policy in the shadow of the one that decides.

use contracts::DecisionRecord;
use placement::Policy;
use router_api::Config;
use serde_json::json;

use crate::engine::Engine;
use crate::world::{World, config};

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_in_the_shadow_sees_what_is_committed_to_and_leaves_nothing() {
    let engine = Engine::start().await;
    let shadowed = Config {
        shadow: Some(Policy::TargetRoundRobin),
        ..config()
    };
    let world = World::with(shadowed, &[&engine]).await;
    world.index.hold("w1#1/1", 64);
    for _ in 0..100 {
        world.route(json!({"conversation": "dry"})).await;
    }
    let report = world.admin("shadow").await;
    assert_eq!(
        (&report["decisions"], &report["flips"]),
        (&json!(0), &json!(0))
    );
    let targets = world.admin("targets").await;
    let targets = targets["targets"].as_array().unwrap();
    assert!(targets.iter().all(|it| it["pending_tokens"] == 0));
    assert!(world.affinity.list(10).await.unwrap().is_empty());

    for _ in 0..4 {
        let routed = world
            .route(json!({"conversation": "c", "commit": true}))
            .await;
        assert_eq!(routed["target"], "w1#1/1");
        world.told(&routed, json!({"cached_tokens": 0})).await;
    }
    let report = async || world.admin("shadow").await;
    world.until(async || report().await["decisions"] == 4).await;
    let report = report().await;
    // The first turn of four is taken in turn, and the first place in turn is rank 0, which holds nothing.
    assert_eq!(report["shadow"], "target_round_robin");
    assert_eq!(report["asked"], 4);
    let flips = report["flips"].as_u64().unwrap();
    assert!(0 < flips, "{report}");
    assert!(report["gain_seconds"].as_f64().unwrap() < 0.0, "{report}");
    let lost = report["lost_tokens"].as_f64().unwrap();
    assert_eq!(lost, 252.0 * flips as f64, "{report}");
    assert_eq!(world.gauge("rankway_shadow_decisions_total"), 4.0);
    assert_eq!(world.affinity.list(10).await.unwrap().len(), 1);
    world.until_nothing_is_left().await;

    let none = World::before(&[&engine]).await;
    let refused = none.admin_get("shadow").await;
    assert_eq!(refused.status, 400);
    assert!(refused.error().contains("router.shadow"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_policy_in_the_shadow_keeps_for_itself_is_in_the_decisions() {
    let engine = Engine::start().await;
    let shadowed = Config {
        shadow: Some("sticky_least".parse().unwrap()),
        ..config()
    };
    let world = World::with(shadowed, &[&engine]).await;
    for _ in 0..2 {
        let routed = world
            .route(json!({"conversation": "c", "commit": true}))
            .await;
        world.told(&routed, json!({"cached_tokens": 0})).await;
    }
    let lines = world.admin_get("decisions?whole=true").await;
    let lines = String::from_utf8(lines.body.to_vec()).unwrap();
    let records = lines
        .lines()
        .map(|it| DecisionRecord::from_json(it).unwrap());
    let [second, first] = &records.collect::<Vec<_>>()[..] else {
        panic!("{lines}");
    };
    assert_eq!(first.asked.stuck, None);
    let stuck = second.asked.stuck.as_ref().unwrap();
    assert_eq!(Some(&stuck.target), first.place.target());
}
