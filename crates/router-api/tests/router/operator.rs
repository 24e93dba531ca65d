//! What an operator sees and does through the admin API.

use std::collections::BTreeSet;

use bus::{Expect, Key};
use bytes::Bytes;
use contracts::{Encoding as _, FleetEntry, topics};
use domain::{Drain, Timestamp, Worker};
use serde_json::{Value, json};

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

/// Two conversations that are bound at w1.
async fn two_at_w1(world: &World, engines: &mut [Engine]) -> [String; 2] {
    let mut at_w1 = Vec::new();
    for number in 0.. {
        let id = format!("c{number}");
        if turn(&world.client, engines, &id).await.starts_with("w1/") {
            at_w1.push(id);
        }
        if at_w1.len() == 2 {
            break;
        }
    }
    world.until_nothing_is_left().await;
    at_w1.try_into().unwrap()
}

/// Whether a router shows w1 in this state.
async fn w1_is(client: &Client, state: &str) -> bool {
    let workers = client.get("/workers").await.json();
    workers["workers"][0]["state"] == state
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_takes_no_new_conversation_at_any_router_until_it_is_undrained() {
    let (mut engines, mut world) = world().await;
    let (peer, _peer_end) = world.another("router-2").await;
    let [kept, _] = two_at_w1(&world, &mut engines).await;

    let drained = post(&world, "workers/w1/drain", json!({})).await.json();
    let drain = &drained["worker"]["drains"][0];
    assert_eq!(drain["dp_rank"], json!(null));
    assert_eq!(
        (&drain["moves"], &drain["actor"]),
        (&json!(false), &json!("operator"))
    );
    // The router that was asked goes by it once it answers. The others hear of it from the bus, not from a poll.
    assert!(w1_is(&world.client, "draining").await);
    world.until(async || w1_is(&peer, "draining").await).await;
    assert!(0.0 < world.gauge("rankway_drain_followed_seconds"));
    for number in 0..8 {
        let id = format!("new{number}");
        let client = if number % 2 == 0 {
            &world.client
        } else {
            &peer
        };
        assert!(turn(client, &mut engines, &id).await.starts_with("w2/"));
    }
    // Those it had stay.
    assert!(turn(&peer, &mut engines, &kept).await.starts_with("w1/"));
    post(&world, "workers/w1/undrain", json!({})).await;
    world.until(async || w1_is(&peer, "ready").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_under_another_key_is_refused_and_counted() {
    let (_engines, world) = world().await;
    let drain = Drain {
        worker: "w1".parse().unwrap(),
        dp_rank: None,
        moves: true,
        actor: "someone".parse().unwrap(),
        since: Timestamp::ZERO,
    };
    for key in ["w2", "w1/0"] {
        let key = Key(Bytes::from(key));
        let table = &topics::DRAINS.table;
        let put = world
            .bus
            .put(table, key, Some(drain.to_bytes()), Expect::Any);
        put.await.unwrap();
    }
    world
        .until_metric(r#"rankway_router_unreadable_total{topic="drains"}"#, 2.0)
        .await;
    let workers = world.admin("workers").await;
    for worker in workers["workers"].as_array().unwrap() {
        assert_eq!(worker["state"], "ready");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_leave_a_drained_worker_at_their_next_turn_where_they_are_to_move() {
    let (mut engines, mut world) = world().await;
    let (peer, _peer_end) = world.another("router-2").await;
    let [moved, idle] = two_at_w1(&world, &mut engines).await;
    let drained = post(&world, "workers/w1/drain", json!({})).await.json();
    let told = post(&world, "workers/w1/drain?move=true", json!({})).await;
    let told = told.json();
    let of = |answer: &Value, field: &str| answer["worker"]["drains"][0][field].clone();
    assert_eq!(of(&told, "moves"), json!(true));
    assert_eq!(of(&told, "since_seconds"), of(&drained, "since_seconds"));
    world.until(async || w1_is(&peer, "leaving").await).await;
    let moved_to = turn(&peer, &mut engines, &moved).await;
    assert!(moved_to.starts_with("w2/"));
    let binding = world.admin(&format!("bindings/{moved}")).await;
    assert_eq!(
        (&binding["reason"], &binding["actor"]),
        (&json!("drained"), &json!("router-2"))
    );

    // A router that starts later goes by it too.
    let (late, _late_end) = world.another("router-3").await;
    assert!(w1_is(&late, "leaving").await);
    post(&world, "workers/w1/undrain", json!({})).await;
    world.until(async || w1_is(&late, "ready").await).await;
    world.until(async || w1_is(&peer, "ready").await).await;
    let stays = turn(&late, &mut engines, &moved).await;
    assert_eq!(stays, moved_to, "nothing flaps back");
    let idle = turn(&late, &mut engines, &idle).await;
    assert!(idle.starts_with("w1/"), "it never left");
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
    assert_eq!(undrained["worker"]["drains"], json!([]));
    assert_eq!(undrained["worker"]["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_ready_where_all_is_drained() {
    let (_engines, world) = world().await;
    let missing = || {
        let missing = world.health.missing();
        missing.into_values().collect::<String>()
    };
    post(&world, "workers/w1/drain", json!({})).await;
    assert_eq!(missing(), "");
    for rank in [0, 1] {
        let path = format!("workers/w2/ranks/{rank}/drain?move=true");
        post(&world, &path, json!({})).await;
    }
    let why = "no target takes a new request: worker w1 is drained; worker w2 is drained";
    world.until(async || missing() == why).await;
    post(&world, "workers/w2/ranks/1/undrain", json!({})).await;
    world.until(async || missing().is_empty()).await;
}

async fn empty_since(world: &World) -> Value {
    world.admin("workers").await["workers"][0]["drains"][0]["empty_since_seconds"].clone()
}

/// BC-56: whoever takes a worker away waits until nothing is left there.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_drained_is_said_to_be_empty_once_nothing_runs_or_is_kept_there() {
    let mut engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let body = json!({"model": "m", "prompt": [1, 2, 3, 4, 5], "stream": true}).to_string();
    let headers = [("x-rankway-conversation", "c")];
    let request = world.client.post("/v1/completions", &headers, &body);
    let operate = async {
        let stream = engine.next().await.stream();
        stream.send("data: {}\n\n").await;
        post(&world, "workers/w1/drain?move=true", json!({})).await;
        // Some looks, of which none finds it empty.
        for _ in 0..4 {
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
            assert_eq!(
                empty_since(&world).await,
                Value::Null,
                "a stream runs there"
            );
        }
        stream.send("data: [DONE]\n\n").await;
    };
    let (answer, ()) = tokio::join!(request, operate);
    assert_eq!(answer.status.as_u16(), 200, "and it is not cut");
    world
        .until(async || empty_since(&world).await.is_f64())
        .await;
    // As long as conversations stay, it is not empty while one is kept there.
    post(&world, "workers/w1/drain", json!({})).await;
    world
        .until(async || empty_since(&world).await.is_null())
        .await;
    post(&world, "bindings/c/release", json!({})).await;
    world
        .until(async || empty_since(&world).await.is_f64())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_its_client_finishes_is_bound_no_more() {
    let (mut engines, world) = world().await;
    turn(&world.client, &mut engines, "c1").await;
    let bound = async || {
        let page = world.admin("bindings").await;
        ids(&page).len()
    };
    world.until(async || bound().await == 1).await;

    let finish = async |query: &str| {
        let path = format!("/finish_session{query}");
        let answer = world.client.post(&path, &[], "").await;
        (answer.status.as_u16(), answer.json())
    };
    let (status, error) = finish("").await;
    assert_eq!(status, 400);
    assert_eq!(
        error["error"]["message"],
        "session_id: say which session is over"
    );
    let (status, said) = finish("?session_id=c1").await;
    assert_eq!((status, &said["released"]), (200, &json!(1)));
    assert_eq!(bound().await, 0);
    let (status, said) = finish("?session_id=c1").await;
    assert_eq!((status, &said["released"]), (200, &json!(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_lease_has_ended_is_shown_as_gone() {
    let engine = Engine::start().await;
    let world = World::before(&[&engine]).await;
    let table = &topics::FLEET.table;
    let key = |id: &'static str| Key(Bytes::from_static(id.as_bytes()));
    let entry = world.bus.get(table, &key("w1")).await.unwrap().unwrap();
    let FleetEntry::Worker(worker) = FleetEntry::from_bytes(&entry.value).unwrap() else {
        panic!("w1 is a worker");
    };
    let dead = FleetEntry::Worker(Worker {
        id: "w9".parse().unwrap(),
        lease_until: Timestamp::from_micros(1),
        ..worker
    });
    let put = world
        .bus
        .put(table, key("w9"), Some(dead.to_bytes()), Expect::Any);
    put.await.unwrap();
    for what in ["workers", "targets"] {
        world
            .until(async || {
                let all = world.admin(what).await;
                let state = |id: &str| {
                    let all = all[what].as_array().unwrap();
                    let one = all.iter().find(|it| it["id"] == id || it["worker"] == id);
                    one.map(|it| it["state"].clone())
                };
                state("w9") == Some(json!("gone")) && state("w1") == Some(json!("ready"))
            })
            .await;
    }
}
