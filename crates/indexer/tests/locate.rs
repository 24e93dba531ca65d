//! Asking which rank of a worker holds a prefix: the evidence of where a request ran.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::time::Duration;

use contracts::rpc::{LocateRequest, PrefixHashes};
use domain::{DpRank, Epoch, KvOp};
use tokio::time::{Instant, sleep};
use world::{Running, World, batch, hashes, namespace, removed, stored, target, until};

const PATH: &[u64] = &[1, 2, 3];
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(150);

async fn locate(running: &Running, path: &[u64], epoch: u64, deadline: Duration) -> Vec<u32> {
    let request = LocateRequest {
        namespace: namespace(),
        worker: "w".parse().unwrap(),
        epoch: Epoch::new(epoch),
        hashes: PrefixHashes::end(&hashes(path)),
        deadline,
    };
    let ranks = running.index.locate(request).await.unwrap();
    ranks.into_iter().map(DpRank::get).collect()
}

#[tokio::test]
async fn a_prefix_that_is_there_is_found_at_once_on_every_rank_that_holds_it() {
    let (world, _) = World::new();
    for rank in ["w#1/2", "w#1/0"] {
        world
            .append(batch(&target(rank), 0, vec![stored(PATH, 0)]))
            .await;
    }
    world
        .append(batch(&target("w#1/1"), 0, vec![stored(&PATH[..2], 0)]))
        .await;
    let running = world.start().await;

    let asked = Instant::now();
    assert_eq!(locate(&running, PATH, 1, LONG).await, [0, 2]);
    assert_eq!(locate(&running, &PATH[..2], 1, LONG).await, [0, 1, 2]);
    assert!(asked.elapsed() < LONG / 2);
}

#[tokio::test]
async fn a_prefix_that_is_not_there_yet_is_found_when_it_comes() {
    let (world, _) = World::new();
    let rank = target("w#1/3");
    world
        .append(batch(&rank, 0, vec![stored(&PATH[..1], 0)]))
        .await;
    let running = world.start().await;

    let asked = Instant::now();
    let coming = async {
        sleep(SHORT).await;
        world.append(batch(&rank, 1, vec![stored(PATH, 1)])).await;
    };
    let (found, ()) = tokio::join!(locate(&running, PATH, 1, LONG), coming);

    assert_eq!(found, [3]);
    assert!(asked.elapsed() < LONG / 2);
}

#[tokio::test]
async fn at_the_deadline_nobody_holds_it() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    world.append(batch(&rank, 0, vec![stored(PATH, 0)])).await;
    world.append(batch(&rank, 1, vec![removed(PATH)])).await;
    let running = world.start().await;

    let asked = Instant::now();
    assert_eq!(locate(&running, PATH, 1, SHORT).await, [0_u32; 0]);
    assert!(SHORT <= asked.elapsed());
    assert_eq!(locate(&running, &PATH[..2], 1, Duration::ZERO).await, [0]);
}

#[tokio::test]
async fn other_workers_and_ended_incarnations_do_not_count() {
    let (world, _) = World::new();
    let (old, other) = (target("w#1/0"), target("v#2/1"));
    for rank in [&old, &other] {
        world.append(batch(rank, 0, vec![stored(PATH, 0)])).await;
    }
    let running = world.start().await;
    assert_eq!(locate(&running, PATH, 1, SHORT).await, [0]);
    assert_eq!(locate(&running, PATH, 2, SHORT).await, [0_u32; 0]);

    world
        .append(batch(&target("w#2/2"), 0, vec![KvOp::Cleared]))
        .await;
    world
        .append(batch(&target("w#2/2"), 1, vec![stored(PATH, 0)]))
        .await;

    assert_eq!(locate(&running, PATH, 2, LONG).await, [2]);
    until!("ended", locate(&running, PATH, 1, SHORT).await.is_empty());
}
