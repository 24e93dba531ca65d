//! What an operator sees and does through the admin API.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{Answer, Client};
use crate::engine::Engine;
use crate::world::World;

/// A turn of a conversation, and the target it went to.
async fn turn(client: &Client, engines: &mut [Engine], conversation: &str) -> String {
    let body = json!({"model": "m", "prompt": (0..9).collect::<Vec<u32>>()}).to_string();
    let headers = [("x-rankway-conversation", conversation)];
    let answer = client.post("/v1/completions", &headers, &body);
    let [first, second] = engines else {
        panic!("two engines")
    };
    let serve = async {
        let arrival = tokio::select! {
            arrival = first.next() => arrival,
            arrival = second.next() => arrival,
        };
        arrival.answer(
            200,
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":1}}"#,
        );
    };
    let (answer, ()) = tokio::join!(answer, serve);
    let header = |name| answer.header(name).unwrap().to_owned();
    assert_eq!(answer.status.as_u16(), 200);
    format!(
        "{}/{}",
        header("x-rankway-worker"),
        header("x-rankway-dp-rank")
    )
}

async fn world() -> (Vec<Engine>, World) {
    let engines = vec![Engine::start().await, Engine::start().await];
    let world = World::before(&engines.iter().collect::<Vec<_>>()).await;
    (engines, world)
}

async fn post(world: &World, path: &str, body: Value) -> Answer {
    world.admin_post(path, &body).await
}

fn ids(page: &Value) -> BTreeSet<String> {
    let bindings = page["bindings"].as_array().unwrap();
    let id = |it: &Value| it["conversation"].as_str().unwrap().to_owned();
    bindings.iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_are_listed_searched_moved_and_released() {
    let (mut engines, mut world) = world().await;
    let (peer, _peer_end) = world.another("router-2").await;
    let mut homes = Vec::new();
    for number in 0..12 {
        let id = format!("agent/{number} a");
        homes.push(turn(&world.client, &mut engines, &id).await);
    }
    world.until_nothing_is_left().await;

    let mut listed = BTreeSet::new();
    let mut path = "bindings?limit=5".to_owned();
    loop {
        let page = world.admin(&path).await;
        listed.extend(ids(&page));
        match page["next"].as_str() {
            Some(next) => path = format!("bindings?limit=5&after={next}"),
            None => break,
        }
    }
    assert_eq!(listed.len(), 12);
    let (worker, rank) = homes[3].split_once('/').unwrap();
    let at = world
        .admin(&format!("bindings?worker={worker}&dp_rank={rank}"))
        .await;
    let there = homes.iter().filter(|it| **it == homes[3]).count();
    assert_eq!(ids(&at).len(), there);
    let found = world
        .admin("bindings?conversation=%2F11+a&state=confirmed")
        .await;
    assert_eq!(ids(&found), ["agent/11 a".to_owned()].into());
    let wrong = world.admin("bindings?rank=1").await["error"]["message"].clone();
    assert!(
        wrong.as_str().unwrap().contains("\"rank\" is unknown"),
        "{wrong}"
    );

    let one = "bindings/agent%2F3%20a";
    assert_eq!(world.admin(one).await["worker"], worker);
    let elsewhere = match worker {
        "w1" => "w2/1",
        _ => "w1/1",
    };
    let moved = post(&world, &format!("{one}/move"), json!({"to": elsewhere}))
        .await
        .json();
    assert_eq!(
        (&moved["reason"], &moved["actor"]),
        (&json!("operator"), &json!("operator"))
    );
    // Whichever router has its next turn.
    assert_eq!(turn(&peer, &mut engines, "agent/3 a").await, elsewhere);
    assert_eq!(
        turn(&world.client, &mut engines, "agent/3 a").await,
        elsewhere
    );

    let released = post(&world, &format!("{one}/release"), json!({})).await;
    assert_eq!(released.status.as_u16(), 200);
    assert_eq!(world.admin_get(one).await.status.as_u16(), 404);
    for to in ["w9/0", "w1/7", "w1#9/0", "w1", ""] {
        let refused = post(&world, "bindings/agent%2F4%20a/move", json!({"to": to})).await;
        assert_eq!(refused.status.as_u16(), 400, "{to}");
        assert!(refused.error().starts_with("to: "), "{}", refused.error());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_bindings_are_imported_by_another_deployment() {
    let (mut engines, world) = world().await;
    let home = turn(&world.client, &mut engines, "c").await;
    world.until_nothing_is_left().await;
    let exported = world.admin("bindings").await;
    let body = json!({"bindings": exported["bindings"]});

    let other = World::before(&engines.iter().collect::<Vec<_>>()).await;
    let imported = post(&other, "bindings", body.clone()).await.json();
    assert_eq!(imported, json!({"imported": 1, "left_out": 0}));
    assert_eq!(turn(&other.client, &mut engines, "c").await, home);
    let mut wrong = body;
    wrong["bindings"][0]["owner"] = json!("nobody");
    let refused = post(&other, "bindings", wrong).await;
    assert_eq!(refused.error(), "bindings[0]: owner \"nobody\" is unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_takes_no_new_conversation_at_any_router_until_it_is_undrained() {
    let (mut engines, mut world) = world().await;
    let (peer, _peer_end) = world.another("router-2").await;
    let mut at_w1 = Vec::new();
    for number in 0.. {
        let id = format!("c{number}");
        if turn(&world.client, &mut engines, &id)
            .await
            .starts_with("w1/")
        {
            at_w1.push(id);
        }
        if at_w1.len() == 2 {
            break;
        }
    }
    world.until_nothing_is_left().await;

    let began = Instant::now();
    let drained = post(&world, "workers/w1/drain", json!({})).await.json();
    assert_eq!(
        (&drained["worker"]["drained"], &drained["worker"]["state"]),
        (&json!(true), &json!("draining"))
    );
    let is_draining = async |client: &Client| {
        let workers = client.get("/workers").await.json();
        workers["workers"][0]["state"] == "draining"
    };
    assert!(is_draining(&world.client).await);
    world.until(async || is_draining(&peer).await).await;
    // Generous for a busy machine; the routers hear of it from the bus, not from a poll.
    assert!(began.elapsed() < Duration::from_secs(5));
    for number in 0..8 {
        let id = format!("new{number}");
        let client = if number % 2 == 0 {
            &world.client
        } else {
            &peer
        };
        assert!(turn(client, &mut engines, &id).await.starts_with("w2/"));
    }
    // Those it had go elsewhere at their next turn, once.
    let moved_to = turn(&peer, &mut engines, &at_w1[0]).await;
    assert!(moved_to.starts_with("w2/"));
    let binding = world.admin(&format!("bindings/{}", at_w1[0])).await;
    assert_eq!(
        (&binding["reason"], &binding["actor"]),
        (&json!("drained"), &json!("router-2"))
    );

    // A router that starts later goes by it too.
    let (late, _late_end) = world.another("router-3").await;
    assert!(is_draining(&late).await);
    post(&world, "workers/w1/undrain", json!({})).await;
    world.until(async || !is_draining(&late).await).await;
    world.until(async || !is_draining(&peer).await).await;
    assert_eq!(
        turn(&late, &mut engines, &at_w1[0]).await,
        moved_to,
        "nothing flaps back"
    );
    assert!(
        turn(&late, &mut engines, &at_w1[1])
            .await
            .starts_with("w1/"),
        "it never left"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_rank_is_drained_by_itself() {
    let (mut engines, world) = world().await;
    for path in [
        "workers/w9/drain",
        "workers/w1/ranks/7/drain",
        "workers/w1/ranks/x/drain",
    ] {
        assert_eq!(
            post(&world, path, json!({})).await.status.as_u16(),
            404,
            "{path}"
        );
    }
    for rank in ["workers/w1/ranks/0", "workers/w2/ranks/1"] {
        let answer = post(&world, &format!("{rank}/drain"), json!({})).await;
        assert_eq!(answer.status.as_u16(), 200);
    }
    let targets = world.admin("targets").await;
    let states: Vec<_> = targets["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["state"].clone())
        .collect();
    assert_eq!(states, ["draining", "ready", "ready", "draining"]);
    let mut seen = BTreeSet::new();
    for number in 0..12 {
        seen.insert(turn(&world.client, &mut engines, &format!("c{number}")).await);
    }
    assert!(
        seen.iter().all(|it| it == "w1/1" || it == "w2/0"),
        "{seen:?}"
    );

    post(&world, "workers/w1/drain", json!({})).await;
    let refused = post(&world, "workers/w1/ranks/0/undrain", json!({})).await;
    assert_eq!(refused.status.as_u16(), 400);
    let undrained = post(&world, "workers/w1/undrain", json!({})).await.json();
    assert_eq!(undrained["worker"]["drained_ranks"], json!([]));
    assert_eq!(undrained["worker"]["state"], "ready");
}
