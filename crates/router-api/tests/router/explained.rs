//! Why requests went where they went.

use placement::Policy;
use router_api::Config;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::world::{World, config};

#[tokio::test(flavor = "multi_thread")]
async fn each_of_1500_decisions_is_explained_and_its_terms_sum_to_its_cost() {
    let engines = [Engine::start().await, Engine::start().await];
    let world = World::before(&engines.each_ref()).await;
    let mut ids = Vec::new();
    for number in 0..1_500_u32 {
        let (worker, rank) = (number % 2 + 1, number / 2 % 2);
        if number % 100 == 0 {
            world
                .index
                .hold(&format!("w{worker}#1/{rank}"), number % 60);
        }
        let conversation = format!("c{}", number % 97);
        let routed = world.route(json!({"conversation": conversation})).await;
        ids.push(routed["id"].as_str().unwrap().to_owned());
    }
    let mut tied = 0;
    for id in &ids {
        let explained = world.admin(&format!("decisions/{id}?why_not=w2/1")).await;
        assert_eq!(explained["id"], *id);
        let mut costs = Vec::new();
        for candidate in explained["candidates"].as_array().unwrap() {
            let cost = candidate["cost"].as_object().unwrap();
            let total = cost["total_seconds"].as_f64().unwrap();
            let is_term =
                |it: &(&String, &Value)| it.0.ends_with("_seconds") && it.0 != "total_seconds";
            let terms = cost.iter().filter(is_term);
            let sum: f64 = terms.map(|it| it.1.as_f64().unwrap()).sum();
            assert!(
                (sum - total).abs() <= total * 1e-12,
                "{id}: {sum} and {total}"
            );
            costs.push(total);
        }
        costs.sort_by(f64::total_cmp);
        let margin = explained["margin"]["seconds"].as_f64().unwrap();
        assert!((margin - (costs[1] - costs[0])).abs() < 1e-12, "{id}");
        let among = explained["ties"]["among"].as_u64().unwrap();
        tied += u32::from(1 < among);
        assert!((1..=4).contains(&among), "{id}");
        let why_not = &explained["why_not"];
        assert_eq!(why_not["target"], "w2#1/1");
        let asked = why_not["dearer_seconds"].as_f64();
        let differences = why_not["terms"].as_array().unwrap().iter();
        let sum: f64 = differences
            .map(|it| it["dearer_seconds"].as_f64().unwrap())
            .sum();
        match asked {
            Some(dearer) => assert!((sum - dearer).abs() < 1e-9, "{id}: {sum} and {dearer}"),
            None => assert_eq!(explained["target"], "w2#1/1", "{id}"),
        }
    }
    assert!(0 < tied && tied < 1_500, "{tied}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_request_did_not_go_somewhere_is_said_in_words() {
    let engines = [Engine::start().await, Engine::start().await];
    let world = World::before(&engines.each_ref()).await;
    world.index.hold("w1#1/0", 64);
    let routed = world
        .route(json!({"conversation": "c", "commit": true}))
        .await;
    assert_eq!(routed["target"], "w1#1/0");
    world.told(&routed, json!({"cached_tokens": 0})).await;
    let id = routed["id"].as_str().unwrap();
    let asked =
        async |path: String| world.admin(&format!("decisions/{path}")).await["why_not"].clone();

    let other = asked(format!("{id}?why_not=w2/1")).await;
    assert_eq!(other["against"], "w1#1/0");
    assert_eq!(other["terms"][0]["name"], "miss");
    assert!(0.0 < other["dearer_seconds"].as_f64().unwrap());
    assert_eq!(
        asked(format!("{id}?why_not=w1%231/0")).await["because"][0],
        "it did go there"
    );

    let drain = json!({});
    assert_eq!(
        world.admin_post("workers/w2/drain", &drain).await.status,
        200
    );
    world
        .until(async || world.admin("targets").await["targets"][3]["state"] == "draining")
        .await;
    let bound = world
        .route(json!({"conversation": "c", "commit": true}))
        .await;
    let why = asked(format!("{}?why_not=w2/1", bound["id"].as_str().unwrap())).await;
    let because = why["because"].to_string();
    assert!(because.contains("drained"), "{because}");
    assert!(because.contains("bound to w1#1/0"), "{because}");
    assert_eq!(why["dearer_seconds"], Value::Null);

    for (place, says) in [
        ("w3/0", "none of the model's ranks then"),
        ("w1", "WORKER/RANK"),
    ] {
        let refused = world
            .admin_get(&format!("decisions/{id}?why_not={place}"))
            .await;
        assert_eq!(refused.status, 400);
        assert!(refused.error().contains(says), "{}", refused.error());
    }
    let unknown = world
        .admin_get(&format!("decisions/{}", "0".repeat(32)))
        .await;
    assert_eq!(unknown.status, 404);
    assert!(
        unknown.error().contains("router-1 has not made it"),
        "{}",
        unknown.error()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_is_not_remembered_any_more_is_said_to_be_in_the_topic() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let first = world.route(json!({"commit": true})).await;
    world.told(&first, json!({})).await;
    let body = json!({"model": "m", "token_ids": [1]}).to_string();
    for _ in 0..100 {
        let dry = (0..100).map(|_| world.client.post("/v1/route", &[], &body));
        futures::future::join_all(dry).await;
    }
    let id = first["id"].as_str().unwrap();
    let forgotten = world.admin_get(&format!("decisions/{id}")).await;
    assert_eq!(forgotten.status, 404);
    let says = forgotten.error();
    assert!(says.contains("the last 10000 decisions"), "{says}");
    assert!(says.contains("topic decisions"), "{says}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_published_policy_made_of_each_candidate_is_shown_beside_our_cost() {
    let engine = Engine::start().await;
    let policy: Policy = "dynamo".parse().unwrap();
    let world = World::with(Config { policy, ..config() }, &[&engine]).await;
    world.index.hold("w1#1/1", 64);
    let routed = world.route(json!({"commit": true})).await;
    let explained = world.admin("decisions/last").await;
    assert_eq!(
        (&explained["policy"], &explained["id"]),
        (&json!("dynamo"), &routed["id"])
    );
    let candidates = explained["candidates"].as_array().unwrap().iter();
    let weighed = candidates.map(|it| it["cost"]["weighed"].as_f64().unwrap());
    let weighed: Vec<f64> = weighed.collect();
    assert!(weighed[1] < weighed[0], "{weighed:?}");
    assert_eq!(routed["target"], "w1#1/1");
}
