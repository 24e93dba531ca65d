//! The ingest against engines behind real ZMQ sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod drained;
mod endpoints;
mod engine;
mod fixture;
mod frames;
mod pages;
mod restarts;

use std::sync::atomic::Ordering;

use contracts::rpc::CallError;
use domain::{
    BlockHash, DpRank, Epoch, EventSeq, HashSeed, KvOp, ResetReason, Target, block_hashes,
};

use engine::{BLOCK, Rank, block};
use fixture::{Ingest, Switched, batches, eventually, incarnation, numbers, register, worker_id};

/// A ring that keeps everything.
pub(crate) const ALL: usize = usize::MAX;

pub(crate) fn epoch_1(seqs: std::ops::Range<u64>) -> Vec<(u64, u64)> {
    seqs.map(|seq| (1, seq)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_after_attaching_is_in_the_log_in_order_and_without_tokens() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    ingest.ready().await;
    rank.publish_many(50).await;
    // Whether or not the first few came before the subscription, the last one shows that they are missing.
    let log = batches(&bus, 0, 50).await;
    assert_eq!(numbers(&log), epoch_1(0..50));
    let seed = HashSeed::of(None, None);
    let expected = block_hashes(&block(7).token_ids, log_block_size(), seed);
    assert_eq!(content(&log[7].ops), expected);
    assert_eq!(incarnation(&bus).await.epoch, Epoch::FIRST);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_message_that_nobody_heard_is_asked_for_soon_after_the_one_before_it() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    // So long that it cannot be what shows it.
    let ingest = Ingest::start_with(&bus, data.path(), |config| config.silence_ms = 3_600_000);
    ingest.ready().await;
    // Only once the live socket is heard is nothing else going to show it.
    while ingest.events("published") == 0 {
        rank.publish().await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    rank.publish().await;
    rank.publish_unheard();

    let published = rank.published();
    let log = batches(&bus, 0, published as usize).await;
    assert_eq!(numbers(&log), epoch_1(0..published));
    // Nor is one that is lost later in the same pause missed for long.
    rank.publish_unheard();
    let log = batches(&bus, 0, published as usize + 1).await;
    assert_eq!(numbers(&log), epoch_1(0..published + 1));
    ingest.stop().await;
}

fn log_block_size() -> domain::BlockSize {
    domain::BlockSize::new(BLOCK).unwrap()
}

fn content(ops: &[KvOp]) -> Vec<BlockHash> {
    match ops {
        [KvOp::Stored(stored)] => stored.blocks.iter().map(|it| it.block_hash).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_late_to_a_ring_that_keeps_everything_misses_nothing() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    (0..30).for_each(|_| rank.publish_unheard());
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    assert_eq!(numbers(&batches(&bus, 0, 30).await), epoch_1(0..30));
    assert_eq!(rank.asked(), [0]);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_late_to_a_truncated_ring_resets_first() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, 10).await;
    (0..30).for_each(|_| rank.publish_unheard());
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    let log = batches(&bus, 0, 11).await;
    assert_eq!(numbers(&log), epoch_1(19..30));
    let reason = ResetReason::AttachedLate;
    assert_eq!(log[0].ops, [KvOp::Reset { reason }]);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_messages_are_fetched_and_stand_where_they_belong() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    ingest.ready().await;
    hear(&ingest, &mut rank).await;
    let heard = batches(&bus, 0, 1).await.len() as u64;
    assert_eq!(heard, 1);
    for _ in 0..3 {
        rank.publish_unheard();
    }
    let gaps = || ingest.count("rankway_event_gaps_total", &[("dp_rank", "0")]);
    let before = gaps();
    let last = rank.published();
    rank.publish().await;
    let log = batches(&bus, 0, last as usize + 1).await;
    assert_eq!(numbers(&log), epoch_1(0..last + 1));
    assert_eq!(gaps(), before + 1);
    ingest.stop().await;
}

/// Publishes until a message came by the live socket: from then on nothing is lost by chance.
pub(crate) async fn hear(ingest: &Ingest, rank: &mut Rank) {
    let published = || ingest.events("published") + ingest.events("replayed");
    let before = published();
    rank.publish().await;
    let mut tries = 0;
    while published() == before {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        tries += 1;
        if tries % 10 == 0 {
            rank.publish().await;
        }
        assert!(tries < 1_000, "nothing is heard");
    }
    let everything = rank.published();
    eventually(|| ingest.events("published") == everything).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_come_during_a_replay_follow_what_is_replayed() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    (0..3_000).for_each(|_| rank.publish_unheard());
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    eventually(|| !rank.asked().is_empty()).await;
    rank.publish_many(200).await;
    hear(&ingest, &mut rank).await;
    let count = rank.published();
    let log = batches(&bus, 0, count as usize).await;
    assert_eq!(numbers(&log), epoch_1(0..count));
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_with_two_ranks_begins_one_new_epoch() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut first = Rank::start(0, ALL).await;
    let mut second = Rank::start(1, ALL).await;
    (0..5).for_each(|_| first.publish_unheard());
    (0..5).for_each(|_| second.publish_unheard());
    let endpoints = vec![first.endpoint.clone(), second.endpoint.clone()];
    register(&bus, 2, endpoints).await;
    let ingest = Ingest::start(&bus, data.path());
    batches(&bus, 0, 5).await;
    batches(&bus, 1, 5).await;
    let (mut first, mut second) = tokio::join!(first.restart(), second.restart());
    (0..3).for_each(|_| first.publish_unheard());
    (0..3).for_each(|_| second.publish_unheard());
    for rank in [0, 1] {
        let log = batches(&bus, rank, 8).await;
        let expected = [epoch_1(0..5), vec![(2, 0), (2, 1), (2, 2)]].concat();
        assert_eq!(numbers(&log), expected, "rank {rank}");
    }
    assert_eq!(incarnation(&bus).await.epoch, Epoch::new(2));
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_restarts_asks_only_for_what_it_has_not_published() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    (0..20).for_each(|_| rank.publish_unheard());
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    batches(&bus, 0, 20).await;
    ingest.stop().await;
    (0..5).for_each(|_| rank.publish_unheard());
    let ingest = Ingest::start(&bus, data.path());
    let log = batches(&bus, 0, 25).await;
    assert_eq!(numbers(&log), epoch_1(0..25));
    // The last one published shows by its time that the engine is still the same.
    assert_eq!(rank.asked(), [0, 19]);
    assert_eq!(ingest.events("published"), 5);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarted_while_nobody_listened_begins_a_new_epoch() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    (0..5).for_each(|_| rank.publish_unheard());
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    batches(&bus, 0, 5).await;
    ingest.stop().await;
    // It has come further than before: the numbers alone would fit.
    let mut rank = rank.restart().await;
    (0..9).for_each(|_| rank.publish_unheard());
    let ingest = Ingest::start(&bus, data.path());
    let log = batches(&bus, 0, 14).await;
    let again: Vec<_> = (0..9).map(|seq| (2, seq)).collect();
    assert_eq!(numbers(&log), [epoch_1(0..5), again].concat());
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_without_its_store_does_not_trust_the_numbers_in_the_log() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    (0..5).for_each(|_| rank.publish_unheard());
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    batches(&bus, 0, 5).await;
    ingest.stop().await;
    let empty = tempfile::tempdir().unwrap();
    let ingest = Ingest::start(&bus, empty.path());
    let log = batches(&bus, 0, 10).await;
    let again: Vec<_> = (0..5).map(|seq| (2, seq)).collect();
    assert_eq!(numbers(&log), [epoch_1(0..5), again].concat());
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_the_log_gets_again_what_it_misses() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    (0..10).for_each(|_| rank.publish_unheard());
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    ingest.ready().await;
    batches(&bus, 0, 10).await;
    let target = |epoch, rank| Target {
        worker: worker_id(),
        epoch: Epoch::new(epoch),
        dp_rank: DpRank::new(rank),
    };
    let from = EventSeq::new(7);
    ingest.feed.resync(&target(1, 0), from).await.unwrap();
    let log = batches(&bus, 0, 13).await;
    assert_eq!(numbers(&log[10..]), epoch_1(7..10));
    let stale = ingest.feed.resync(&target(9, 0), from).await;
    assert!(matches!(stale, Err(CallError::FailedPrecondition { .. })));
    let nobody = ingest.feed.resync(&target(1, 5), from).await;
    assert!(matches!(nobody, Err(CallError::InvalidArgument { .. })));
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_outside_the_registered_range_is_refused_and_counted() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut stray = Rank::start(0, ALL).await;
    stray.named = DpRank::new(9);
    let mut good = Rank::start(1, ALL).await;
    (0..4).for_each(|_| stray.publish_unheard());
    (0..4).for_each(|_| good.publish_unheard());
    let endpoints = vec![stray.endpoint.clone(), good.endpoint.clone()];
    register(&bus, 2, endpoints).await;
    let ingest = Ingest::start(&bus, data.path());
    assert_eq!(numbers(&batches(&bus, 1, 4).await), epoch_1(0..4));
    eventually(|| ingest.events("rank_out_of_range") == 4).await;
    assert_eq!(ingest.events("published"), 4);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_publishers_of_one_rank_the_second_is_refused_and_counted() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut one = Rank::start(0, ALL).await;
    let mut other = Rank::start(0, ALL).await;
    (0..4).for_each(|_| one.publish_unheard());
    (0..4).for_each(|_| other.publish_unheard());
    let endpoints = vec![one.endpoint.clone(), other.endpoint.clone()];
    register(&bus, 1, endpoints).await;
    let ingest = Ingest::start(&bus, data.path());
    assert_eq!(numbers(&batches(&bus, 0, 4).await), epoch_1(0..4));
    eventually(|| ingest.events("second_publisher") == 4).await;
    assert_eq!(ingest.events("published"), 4);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rank_a_batch_names_wins_over_the_rank_of_its_socket() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    rank.named = DpRank::new(3);
    (0..4).for_each(|_| rank.publish_unheard());
    register(&bus, 4, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    assert_eq!(numbers(&batches(&bus, 3, 4).await), epoch_1(0..4));
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_while_the_bus_is_away_is_in_the_log_when_it_is_back() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, ALL).await;
    register(&bus, 1, vec![rank.endpoint.clone()]).await;
    let ingest = Ingest::start(&bus, data.path());
    ingest.ready().await;
    hear(&ingest, &mut rank).await;
    bus.down.store(true, Ordering::Relaxed);
    rank.publish().await;
    eventually(|| bus.refused.load(Ordering::Relaxed) > 0).await;
    let amiss = "w1/0 into kv-events: the log takes nothing: bus unavailable: switched off";
    let said = || {
        ingest
            .health
            .findings()
            .into_values()
            .flatten()
            .any(|it| it == amiss)
    };
    eventually(said).await;
    // The rank's task waits for the bus, and the queue before it holds 256: all others are dropped, and
    // nothing comes after them that would show it.
    rank.publish_many(2_000).await;
    eventually(|| ingest.events("overflow") == 2_000 - 256).await;
    bus.down.store(false, Ordering::Relaxed);
    let count = rank.published();
    let log = batches(&bus, 0, count as usize).await;
    assert_eq!(numbers(&log), epoch_1(0..count));
    eventually(|| !said()).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_out_of_reach_does_not_hold_up_readiness_for_long() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let rank = Rank::start(0, ALL).await;
    let endpoint = rank.endpoint.clone();
    drop(rank);
    register(&bus, 1, vec![endpoint]).await;
    let ingest = Ingest::start_with(&bus, data.path(), |config| config.startup_ms = 300);
    assert!(!ingest.health.missing().is_empty());
    ingest.ready().await;
    ingest.stop().await;
}
