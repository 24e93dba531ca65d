//! Entries of the fleet: told, changed, withdrawn, left behind.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Expect, Key, MemoryBus};
use bytes::Bytes;
use contracts::grpc::Services;
use contracts::{Encoding, FleetEntry, topics};
use domain::{ServiceInstance, ServiceKind, Share, Timestamp};
use service_kit::{CancellationToken, Clock, Presence};
use tokio::time::{sleep, timeout};

use crate::world::{PATIENCE, World};

const KIND: ServiceKind = ServiceKind::AffinityStore;

#[tokio::test]
async fn a_service_says_whether_it_is_ready_and_takes_its_entry_away_in_the_end() {
    let world = World::new();
    let process = world
        .start(("a", KIND, Share::Whole), Services::default())
        .await;
    let entry = world.entry("a").await.unwrap();
    assert_eq!(entry.share, Share::Whole);
    assert!(Clock::system().now() < entry.lease_until);

    let component = process.context.health.component("store");
    world
        .until(KIND, |live| live.iter().all(|it| !it.ready))
        .await;
    component.ready();
    world
        .until(KIND, |live| live.iter().all(|it| it.ready))
        .await;

    process.shutdown.cancel();
    world
        .until(KIND, |live| live.iter().any(|it| !it.ready))
        .await;
    let missing = process.context.health.missing();
    assert_eq!(missing.get("process").map(String::as_str), Some("draining"));
    let withdrawn = async {
        while world.entry("a").await.is_some() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, withdrawn).await.unwrap();
    world.until(KIND, |live| live.is_empty()).await;
}

#[tokio::test]
async fn the_lease_of_the_dead_ends_as_soon_as_others_are_heard_of() {
    let world = World::new();
    let entry = |id: &str, lease_until: Timestamp| ServiceInstance {
        id: id.parse().unwrap(),
        kind: KIND,
        address: "127.0.0.1:1".to_owned(),
        share: Share::Whole,
        ready: true,
        distrust: Vec::new(),
        secret: None,
        lease_until,
    };
    let soon = Clock::system().now() + Duration::from_millis(500);
    world.put(entry("dead", soon)).await;
    world.until(KIND, |live| live.len() == 1).await;
    // While nobody is heard of, the bus may be what is away: nobody is given up.
    sleep(Duration::from_millis(700)).await;
    assert_eq!(world.fleet.live(KIND).len(), 1);

    world.put(entry("alive", soon + PATIENCE)).await;
    world
        .until(KIND, |live| {
            live.iter().map(|it| it.id.as_str()).eq(["alive"])
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_renews_is_taken_away_in_the_end() {
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(&topics::LAYOUT));
    let context = crate::world::context();
    let now = context.clock.now();
    let ended = |seconds| now + Duration::from_secs(86_400) - Duration::from_secs(seconds);
    tokio::time::advance(Duration::from_secs(86_400)).await;
    let table = &topics::FLEET.table;
    for (id, seconds) in [("killed", 605), ("frozen", 300)] {
        let entry = FleetEntry::Service(ServiceInstance {
            id: id.parse().unwrap(),
            kind: KIND,
            address: String::new(),
            share: Share::Whole,
            ready: true,
            distrust: Vec::new(),
            secret: None,
            lease_until: ended(seconds),
        });
        let (key, value) = (Key(Bytes::from_static(id.as_bytes())), entry.to_bytes());
        bus.put(table, key, Some(value), Expect::Any).await.unwrap();
    }
    let presence = Presence {
        id: "alive".parse().unwrap(),
        kind: KIND,
        address: String::new(),
        share: Share::Whole,
        secret: None,
    };
    let keeping = presence.keep(bus.clone(), context, Vec::new, CancellationToken::new());
    let left = async {
        loop {
            sleep(Duration::from_secs(1)).await;
            let mut left = Vec::new();
            for id in ["killed", "frozen", "alive"] {
                let key = Key(Bytes::from_static(id.as_bytes()));
                if bus.get(table, &key).await.unwrap().is_some() {
                    left.push(id);
                }
            }
            if left.len() < 3 && left.contains(&"alive") {
                return left;
            }
        }
    };
    tokio::select! {
        () = keeping => {}
        left = left => assert_eq!(left, ["frozen", "alive"]),
    }
}

#[tokio::test]
async fn a_service_without_an_address_is_not_called() {
    let world = World::new();
    let now = Clock::system().now();
    for (id, address) in [("in-process", ""), ("remote", "127.0.0.1:1")] {
        let entry = ServiceInstance {
            id: id.parse().unwrap(),
            kind: KIND,
            address: address.to_owned(),
            share: Share::Whole,
            ready: true,
            distrust: Vec::new(),
            secret: None,
            lease_until: now + PATIENCE,
        };
        world.put(entry).await;
    }
    world
        .until(KIND, |live| {
            live.iter().map(|it| it.id.as_str()).eq(["remote"])
        })
        .await;
}
