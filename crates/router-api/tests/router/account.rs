//! Where tokens are said to have gone.

use serde_json::{Value, json};

use crate::engine::Engine;
use crate::records::TOKENS;
use crate::world::World;

/// What Prometheus has under a name and a label.
fn metric(world: &World, name: &str, label: &str) -> u64 {
    let families = world.registry.gather();
    let family = families.iter().find(|it| it.name() == name);
    let metrics = family.into_iter().flat_map(|it| it.get_metric());
    let labelled = metrics.filter(|it| it.get_label().iter().any(|it| it.value() == label));
    labelled.map(|it| it.get_counter().get_value() as u64).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_waterfall_sums_to_the_token_whatever_became_of_requests_and_metrics_have_the_same() {
    let mut engines = [Engine::start().await, Engine::start().await];
    let world = World::before(&engines.each_ref()).await;
    world.index.hold("w1#1/0", 32);
    for (told, conversation) in [
        (json!({"prompt_tokens": TOKENS, "cached_tokens": 128}), "a"),
        (json!({"prompt_tokens": TOKENS, "cached_tokens": 100}), "b"),
        // More than was promised, and a part of a block.
        (json!({"prompt_tokens": TOKENS, "cached_tokens": 203}), "c"),
        // Unknown is not zero.
        (
            json!({"prompt_tokens": TOKENS, "completion_tokens": 1}),
            "d",
        ),
        (json!({"status": "failed"}), "e"),
        (json!({"status": "cancelled"}), "f"),
    ] {
        let commit = json!({"conversation": conversation, "commit": true});
        let routed = world.route(commit).await;
        world.told(&routed, told.clone()).await;
        world.told(&routed, told).await;
    }
    fails_once_and_is_served(&world, &mut engines).await;
    world.until_nothing_is_left().await;

    let account = world.admin("waterfall").await;
    metrics_have_the_same(&world, &account);
    parts_sum(&account);

    let window = world.admin("waterfall?since=3600").await;
    assert_eq!(window["measured"], account["measured"]);
    assert_eq!(window["window_seconds"], 3_600);
    for wrong in ["since=0", "since=3601", "since=1h", "until=1"] {
        let refused = world.admin_get(&format!("waterfall?{wrong}")).await;
        assert_eq!(refused.status, 400, "{wrong}");
    }
}

/// Fails at its first place, and is served at its second.
async fn fails_once_and_is_served(world: &World, engines: &mut [Engine; 2]) {
    let prompt = json!({"model": "m", "prompt": vec![7_777; TOKENS]}).to_string();
    let client = world.client.post("/v1/completions", &[], &prompt);
    let [one, other] = engines;
    let served = async {
        let usage = json!({"usage": {"prompt_tokens": TOKENS, "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 64}}});
        for number in 0..2 {
            let arrival = tokio::select! {
                arrival = one.next() => arrival,
                arrival = other.next() => arrival,
            };
            match number {
                0 => arrival.answer(503, "busy"),
                _ => arrival.answer(200, usage.to_string()),
            }
        }
    };
    let (answer, ()) = tokio::join!(client, served);
    assert_eq!(answer.status, 200);
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

fn metrics_have_the_same(world: &World, account: &Value) {
    let (measured, unmeasured) = (&account["measured"], &account["unmeasured"]);
    assert_eq!(measured["requests"], 4);
    assert_eq!(unmeasured["requests"], 1);
    let both = |path: &str| {
        number(measured.pointer(path).unwrap()) + number(unmeasured.pointer(path).unwrap())
    };
    for level in [
        "isl",
        "ceiling",
        "stored",
        "best",
        "ready",
        "chosen",
        "realised",
        "sub_block",
    ] {
        let counted = metric(world, "rankway_tokens_total", level);
        assert_eq!(both(&format!("/levels/{level}")), counted as i64, "{level}");
    }
    for part in [
        "cold",
        "in_flight",
        "unannounced",
        "capacity",
        "unavailable",
        "routing",
    ] {
        let counted = metric(world, "rankway_lost_tokens_total", part);
        assert_eq!(both(&format!("/lost/{part}")), counted as i64, "{part}");
    }
    let promised = metric(world, "rankway_lost_tokens_total", "index_error") as i64;
    let unpromised = metric(world, "rankway_tokens_total", "unpromised") as i64;
    assert!(0 < promised && 0 < unpromised, "{promised} {unpromised}");
    assert_eq!(both("/lost/index_error"), promised - unpromised);
}

/// The parts to the gap, and each breakdown to the whole.
fn parts_sum(account: &Value) {
    let measured = &account["measured"];
    let levels = &measured["levels"];
    let lost = number(&levels["isl"]) - number(&levels["realised"]);
    assert_eq!(number(&measured["lost"]["sum"]), lost);
    let gap = number(&levels["ceiling"]) - number(&levels["realised"]);
    assert_eq!(number(&account["gap"]["tokens"]), gap);
    let parts = account["gap"]["parts"].as_object().unwrap().values();
    assert_eq!(parts.map(|it| number(&it["tokens"])).sum::<i64>(), gap);
    for by in ["by_model", "by_worker", "by_reason"] {
        let groups = account[by].as_object().unwrap();
        for path in [
            "/measured/levels/isl",
            "/measured/lost/sum",
            "/unmeasured/lost/sum",
            "/gap/tokens",
        ] {
            let sum: i64 = groups
                .values()
                .map(|it| number(it.pointer(path).unwrap()))
                .sum();
            assert_eq!(sum, number(account.pointer(path).unwrap()), "{by} {path}");
        }
    }
    assert!(account["by_worker"].as_object().unwrap().contains_key("w1"));
}
