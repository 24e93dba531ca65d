//! Several routers before the same engines.

use std::collections::{BTreeMap, BTreeSet};

use bus::{Expect, Key};
use bytes::Bytes;
use contracts::{Encoding as _, FleetEntry, topics};
use domain::TargetState;
use serde_json::json;

use crate::client::{Answer, Client};
use crate::engine::{Arrival, Engine};
use crate::world::World;

/// Tokens that each turn adds: a fiftieth of 2,000, in blocks of four.
const GROWTH: u32 = 40;

async fn next(engines: &mut [Engine; 2]) -> (usize, Arrival) {
    let [first, second] = engines;
    tokio::select! {
        arrival = first.next() => (0, arrival),
        arrival = second.next() => (1, arrival),
    }
}

async fn turn(
    client: &Client,
    engines: &mut [Engine; 2],
    id: &str,
    tokens: u32,
) -> (Answer, String) {
    let body = json!({"model": "m", "prompt": (0..tokens).collect::<Vec<u32>>()}).to_string();
    let headers = [("x-rankway-conversation", id)];
    let answer = client.post("/v1/completions", &headers, &body);
    let serve = async {
        let (engine, arrival) = next(engines).await;
        let at = format!("w{}/{}", engine + 1, arrival.rank().unwrap());
        arrival.answer(
            200,
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":1}}"#,
        );
        at
    };
    tokio::join!(answer, serve)
}

/// BC-01: the turns of a conversation come to one router after another, as behind a balancer that knows nothing of
/// them. Each engine's ranks keep all they have computed, so the hits are all there are if nothing scatters.
#[tokio::test(flavor = "multi_thread")]
async fn turns_that_scatter_over_routers_stay_with_their_cache() {
    const CONVERSATIONS: u32 = 200;
    const TURNS: u32 = 20;
    let mut engines = [Engine::start().await, Engine::start().await];
    let mut world = World::before(&[&engines[0], &engines[1]]).await;
    let (second, _second_end) = world.another("router-2").await;
    let (third, _third_end) = world.another("router-3").await;
    let routers = [world.client.clone(), second, third];
    let mut homes: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    let mut cached: BTreeMap<(u32, String), u32> = BTreeMap::new();
    let (mut hits, mut ceiling) = (0_u64, 0_u64);
    for number in 1..=TURNS {
        for conversation in 0..CONVERSATIONS {
            let router = &routers[((number + conversation) % 3) as usize];
            let id = format!("c{conversation}");
            let (answer, at) = turn(router, &mut engines, &id, number * GROWTH).await;
            assert_eq!(answer.status.as_u16(), 200);
            let held = cached.insert((conversation, at.clone()), number * GROWTH);
            hits += u64::from(held.unwrap_or(0));
            ceiling += u64::from((number - 1) * GROWTH);
            homes.entry(conversation).or_default().insert(at);
        }
    }
    assert!(homes.values().all(|it| it.len() == 1), "{homes:?}");
    assert_eq!(hits, ceiling);
    let used: BTreeSet<_> = homes.values().flatten().collect();
    assert_eq!(used.len(), 4, "and they are spread over all ranks");
}

/// BC-13: the worker of a conversation goes away between two turns.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_whose_worker_went_away_is_bound_again_without_an_error() {
    let mut engines = [Engine::start().await, Engine::start().await];
    let world = World::before(&[&engines[0], &engines[1]]).await;
    let (_, home) = turn(&world.client, &mut engines, "c", 9).await;
    world.until_nothing_is_left().await;
    let (worker, _) = home.split_once('/').unwrap();

    let key = Key(Bytes::copy_from_slice(worker.as_bytes()));
    let table = &topics::FLEET.table;
    let entry = world.bus.get(table, &key).await.unwrap().unwrap();
    let FleetEntry::Worker(mut gone) = FleetEntry::from_bytes(&entry.value).unwrap() else {
        panic!("a worker is registered")
    };
    gone.state = TargetState::Gone;
    let gone = FleetEntry::Worker(gone).to_bytes();
    world
        .bus
        .put(table, key, Some(gone), Expect::Any)
        .await
        .unwrap();
    world
        .until(async || {
            let workers = world.admin("workers").await;
            let workers = workers["workers"].as_array().unwrap();
            workers.iter().any(|it| it["state"] == "gone")
        })
        .await;

    let (answer, at) = turn(&world.client, &mut engines, "c", 13).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_ne!(at.split_once('/').unwrap().0, worker);
    let binding = world.admin("bindings/c").await;
    assert_eq!(
        (&binding["reason"], &binding["worker"]),
        (&json!("gone"), &json!(at.split_once('/').unwrap().0))
    );
}

/// Nothing but what has been sent says where the first turn's blocks are, and that only until there is an id or a name.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_without_an_id_is_led_to_the_first_at_every_router() {
    let mut engines = [Engine::start().await, Engine::start().await];
    let mut world = World::before(&[&engines[0], &engines[1]]).await;
    let (second, _second_end) = world.another("router-2").await;
    world.index.fall_silent();
    for conversation in 1..=5 {
        let first = conversation * 1_000..conversation * 1_000 + 400;
        // Too few blocks more for a name.
        let longer = first.start..first.end + 12;
        let body = json!({"model": "m", "prompt": first.collect::<Vec<u32>>()}).to_string();
        let home = served(&world.client, &mut engines, &body).await;
        let body = json!({"model": "m", "prompt": longer.collect::<Vec<u32>>()}).to_string();
        world
            .until(async || {
                let mut places = BTreeSet::new();
                for _ in 0..10 {
                    let answer = second.post("/v1/route", &[], &body).await.json();
                    let place = format!(
                        "{}/{}",
                        answer["worker"].as_str().unwrap(),
                        answer["dp_rank"]
                    );
                    places.insert(place);
                }
                places == BTreeSet::from([home.clone()])
            })
            .await;
        assert_eq!(served(&second, &mut engines, &body).await, home);
    }
}

/// Where a request without an id runs.
async fn served(client: &Client, engines: &mut [Engine; 2], body: &str) -> String {
    let serve = async {
        let (engine, arrival) = next(engines).await;
        let at = format!("w{}/{}", engine + 1, arrival.rank().unwrap());
        arrival.answer(200, "{}");
        at
    };
    let (answer, at) = tokio::join!(client.post("/v1/completions", &[], body), serve);
    assert_eq!(answer.status.as_u16(), 200);
    at
}
