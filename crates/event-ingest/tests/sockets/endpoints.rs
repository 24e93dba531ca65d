//! Which sockets are read, and what is said of those that cannot be.

use std::sync::atomic::Ordering;

use domain::{KvEndpoints, RankEndpoint, Worker};

use crate::engine::Rank;
use crate::fixture::{
    Ingest, Switched, batches_of, eventually, numbers, register_worker, worker, worker_id,
};

async fn engine(id: &str, start_rank: u32) -> (Worker, Vec<Rank>) {
    let mut ranks = Vec::new();
    for dp_rank in start_rank..start_rank + 4 {
        let mut rank = Rank::start(dp_rank, usize::MAX).await;
        (0..3).for_each(|_| rank.publish_unheard());
        ranks.push(rank);
    }
    let endpoints = ranks.iter().map(|it| it.endpoint.clone()).collect();
    let worker = Worker {
        id: id.parse().unwrap(),
        start_rank,
        ..worker(4, endpoints)
    };
    (worker, ranks)
}

/// <https://github.com/llm-d/llm-d-router/issues/2948>, <https://github.com/llm-d/llm-d-router/issues/2296>
/// (BC-48).
#[tokio::test(flavor = "multi_thread")]
async fn of_two_engines_on_one_address_every_rank_is_read_as_its_own_engines() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let (first, first_ranks) = engine("pod-0", 0).await;
    let (second, second_ranks) = engine("pod-1", 4).await;
    register_worker(&bus, first.clone()).await;
    register_worker(&bus, second.clone()).await;

    let ingest = Ingest::start(&bus, data.path());

    for (worker, ranks) in [(&first, 0..4), (&second, 4..8)] {
        for rank in ranks {
            let log = batches_of(&bus, &worker.id, rank, 3).await;
            assert_eq!(numbers(&log), [(1, 0), (1, 1), (1, 2)], "{rank}");
        }
    }
    // Each endpoint was asked once: there is no pair of one engine with the other's port.
    for rank in first_ranks.iter().chain(&second_ranks) {
        assert_eq!(rank.asked(), [0]);
    }
    assert_eq!(ingest.events("published"), 24);
    assert_eq!(ingest.events("rank_out_of_range"), 0);
    assert_eq!(ingest.health.findings().len(), 0);
    ingest.stop().await;
}

/// The same case: a pod whose port is taken for another's speaks for ranks that are not its own.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_of_another_engine_is_refused_and_named() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let (mut first, _ranks) = engine("pod-0", 0).await;
    let (second, _other_ranks) = engine("pod-1", 4).await;
    let (KvEndpoints::Zmq(own), KvEndpoints::Zmq(others)) =
        (&mut first.kv_endpoints, &second.kv_endpoints)
    else {
        panic!("both publish");
    };
    own[2].publish.clone_from(&others[0].publish);
    own[2].replay.clone_from(&others[0].replay);
    register_worker(&bus, first).await;

    let ingest = Ingest::start(&bus, data.path());

    eventually(|| ingest.events("rank_out_of_range") == 3).await;
    let found = || ingest.health.findings().into_values().flatten().collect();
    eventually(|| {
        let found: Vec<String> = found();
        found.len() == 1 && found[0].starts_with("pod-0/2 at tcp://") && found[0].contains("rank 4")
    })
    .await;
    ingest.stop().await;
}

/// The same case: only the first of four ports is known, or one of them is dead.
#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_cannot_be_read_are_listed_until_they_can() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let rank = Rank::start(0, usize::MAX).await;
    let gone = Rank::start(1, usize::MAX).await;
    let dead: RankEndpoint = gone.endpoint.clone();
    drop(gone);
    let endpoints = vec![rank.endpoint.clone(), dead.clone()];
    register_worker(&bus, worker(4, endpoints)).await;

    let ingest = Ingest::start_with(&bus, data.path(), |config| config.startup_ms = 300);

    let expected = vec![
        format!("w1/1 at {}: not reached", dead.publish),
        "w1/2: no endpoint of its events is registered".to_owned(),
        "w1/3: no endpoint of its events is registered".to_owned(),
    ];
    eventually(|| ingest.health.findings().get("event-ingest") == Some(&expected)).await;
    ingest.ready().await;
    let ranks = [rank, Rank::start(1, usize::MAX).await];
    let endpoints = ranks.iter().map(|it| it.endpoint.clone()).collect();
    register_worker(&bus, worker(2, endpoints)).await;
    eventually(|| ingest.health.findings().is_empty()).await;
    assert_eq!(worker_id().as_str(), "w1");
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_is_read_again_takes_no_readiness_away() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let (first, _first_ranks) = engine("pod-0", 0).await;
    let (second, _second_ranks) = engine("pod-1", 4).await;
    register_worker(&bus, first).await;
    let ingest = Ingest::start(&bus, data.path());
    ingest.ready().await;

    let before = bus.watches.load(Ordering::Relaxed);
    bus.end_watches();
    eventually(|| before + 2 <= bus.watches.load(Ordering::Relaxed)).await;
    // Who comes now is read after all that was there has been.
    register_worker(&bus, second.clone()).await;
    batches_of(&bus, &second.id, 4, 3).await;

    assert_eq!(ingest.health.missing().len(), 0);
    ingest.stop().await;
}
