//! Engines that begin anew without a word: their sockets stay up, their numbers and their cache do not.

use std::time::Duration;

use domain::Epoch;
use tokio::time::sleep;

use crate::engine::Rank;
use crate::fixture::{Ingest, Switched, batches, eventually, incarnation, numbers, register};

/// A rank that has published five messages, and the ingest that has them in the log.
async fn followed(bus: &Switched, data: &std::path::Path, silence_ms: u64) -> (Rank, Ingest) {
    let mut rank = Rank::start(0, usize::MAX).await;
    (0..5).for_each(|_| rank.publish_unheard());
    register(bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start_with(bus, data, |config| {
        config.quiet_ms = silence_ms;
        config.silence_ms = silence_ms;
    });
    ingest.ready().await;
    batches(bus, 0, 5).await;
    (rank, ingest)
}

fn restarts(ingest: &Ingest, cause: &str) -> u64 {
    let labels = [("worker", "w1"), ("dp_rank", "0"), ("cause", cause)];
    ingest.count("rankway_worker_restarts_total", &labels)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_notice_is_found_at_the_first_event() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    // So long that silence cannot be what shows it.
    let (mut rank, ingest) = followed(&bus, data.path(), 3_600_000).await;
    // The live socket is heard from here on.
    let mut published = 5;
    while ingest.events("published") == 5 {
        rank.publish().await;
        published += 1;
        sleep(Duration::from_millis(50)).await;
    }
    eventually(|| ingest.events("published") == published).await;

    rank.forget();
    rank.publish().await;

    let log = batches(&bus, 0, published as usize + 1).await;
    assert_eq!(numbers(&log).last(), Some(&(2, 0)));
    assert_eq!(incarnation(&bus).await.epoch, Epoch::new(2));
    assert_eq!(restarts(&ingest, "sequence"), 1);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_notice_and_without_an_event_is_found_by_silence() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let (mut rank, ingest) = followed(&bus, data.path(), 200).await;

    rank.forget();

    eventually(|| restarts(&ingest, "empty_replay") == 1).await;
    let mut epoch = incarnation(&bus).await.epoch;
    while epoch == Epoch::FIRST {
        sleep(Duration::from_millis(10)).await;
        epoch = incarnation(&bus).await.epoch;
    }
    assert_eq!(epoch, Epoch::new(2));
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_while_nobody_listened_is_counted_by_what_showed_it() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let (mut rank, ingest) = followed(&bus, data.path(), 3_600_000).await;
    ingest.stop().await;
    rank.forget();
    (0..7).for_each(|_| rank.publish_unheard());

    let ingest = Ingest::start(&bus, data.path());

    eventually(|| restarts(&ingest, "timestamp") == 1).await;
    let log = batches(&bus, 0, 12).await;
    assert_eq!(numbers(&log)[5], (2, 0));
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_follows_another_into_a_new_incarnation_is_counted_as_such() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut ranks = [
        Rank::start(0, usize::MAX).await,
        Rank::start(1, usize::MAX).await,
    ];
    for rank in &mut ranks {
        (0..3).for_each(|_| rank.publish_unheard());
    }
    let endpoints = ranks.iter().map(|it| it.endpoint.clone()).collect();
    register(&bus, 2, endpoints).await;
    let ingest = Ingest::start_with(&bus, data.path(), |config| config.silence_ms = 200);
    batches(&bus, 0, 3).await;
    batches(&bus, 1, 3).await;

    ranks[0].forget();

    eventually(|| restarts(&ingest, "empty_replay") == 1).await;
    let other = [("dp_rank", "1"), ("cause", "other_rank")];
    eventually(|| ingest.count("rankway_worker_restarts_total", &other) == 1).await;
    ingest.stop().await;
}
