//! Following the log: repeats, holes, resets, parts, fences, departures.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::time::Duration;

use bus::{Expect, Key, Partition, Record};
use contracts::topics::{FLEET, kv_events_of};
use contracts::{Encoding, FleetEntry};
use domain::{EventSeq, KvBatch, KvOp, Target, TargetState};
use world::{
    World, batch, contents, history, rebuilt, removed, reset, stored, target, until, worker,
};

const PATH: &[u64] = &[1, 2, 3, 4];

#[tokio::test]
async fn what_is_told_twice_counts_once() {
    let (world, _) = World::new();
    let told = history(3, 60);
    for batch in &told {
        world.append(batch.clone()).await;
        world.append(batch.clone()).await;
    }
    for batch in &told[..30] {
        world.append(batch.clone()).await;
    }

    let running = world.start().await;

    assert_eq!(contents(&running.digests().await), rebuilt(&told));
    let duplicates = running.metric("rankway_index_batches_total", Some("duplicate"));
    assert_eq!(duplicates, told.len() as f64 + 30.0);
    assert!(world.asked().is_empty());
}

#[tokio::test]
async fn a_hole_makes_the_rank_suspect_and_is_asked_for_once() {
    let (world, _) = World::new();
    let (holed, whole) = (target("w#1/0"), target("w#1/1"));
    world.append(batch(&whole, 0, vec![stored(PATH, 0)])).await;
    for seq in [0, 1, 3, 4, 5] {
        let path = &[seq + 1];
        world
            .append(batch(&holed, seq, vec![stored(path, 0)]))
            .await;
    }
    let running = world.start().await;

    assert_eq!(running.state(&holed).await, Some(TargetState::Suspect));
    assert_eq!(running.state(&whole).await, Some(TargetState::Ready));
    let not_ready = running.overlap(&[1], false).await.not_ready;
    assert_eq!(not_ready, [(holed.clone(), TargetState::Suspect)]);
    assert_eq!(running.digests().await[0].blocks, 2);
    until!("asked", !world.asked().is_empty());

    for seq in 2..=5 {
        let path = &[seq + 1];
        world
            .append(batch(&holed, seq, vec![stored(path, 0)]))
            .await;
    }
    until!(
        "ready",
        running.state(&holed).await == Some(TargetState::Ready)
    );
    assert_eq!(running.digests().await[0].blocks, 6);
    assert_eq!(world.asked(), [(holed, EventSeq::new(2))]);
}

#[tokio::test]
async fn an_unanswered_request_is_made_again() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    world.append(batch(&rank, 17, vec![stored(PATH, 0)])).await;
    let running = world.start().await;

    until!("asked twice", 2 <= world.asked().len());

    let asked = (rank, EventSeq::new(0));
    assert_eq!(world.asked(), [asked.clone(), asked]);
    assert!(running.digests().await.is_empty());
}

#[tokio::test]
async fn after_a_reset_claims_are_partial_until_the_rank_has_announced_what_it_can_hold() {
    let (world, _) = World::new();
    world.register(worker("w", Some(6))).await;
    let rank = target("w#1/0");
    world.append(batch(&rank, 17, vec![stored(PATH, 0)])).await;
    let running = world.start().await;
    until!("asked", !world.asked().is_empty());

    world.append(batch(&rank, 16, vec![reset()])).await;
    world.append(batch(&rank, 17, vec![stored(PATH, 0)])).await;
    until!(
        "partial",
        running.state(&rank).await == Some(TargetState::Partial)
    );
    let answer = running.overlap(PATH, false).await;
    assert_eq!(answer.groups[0].depths.gpu, 4);

    world
        .append(batch(&rank, 18, vec![removed(PATH), stored(&[8, 9], 0)]))
        .await;
    until!(
        "complete",
        running.state(&rank).await == Some(TargetState::Ready)
    );
}

#[tokio::test]
async fn a_clear_completes_partial_claims_of_its_own_rank_only() {
    let (world, _) = World::new();
    let ranks = [target("w#1/0"), target("w#1/1")];
    for rank in &ranks {
        world.append(batch(rank, 4, vec![reset()])).await;
        world.append(batch(rank, 5, vec![stored(PATH, 0)])).await;
    }
    let running = world.start().await;
    assert_eq!(running.overlap(PATH, false).await.not_ready.len(), 2);

    world.append(batch(&ranks[0], 6, vec![KvOp::Cleared])).await;

    until!(
        "complete",
        running.state(&ranks[0]).await == Some(TargetState::Ready)
    );
    assert_eq!(running.state(&ranks[1]).await, Some(TargetState::Partial));
    let answer = running.overlap(PATH, false).await;
    assert_eq!(answer.groups[0].targets, [ranks[1].clone()]);
    assert_eq!(answer.stored, 4);
}

#[tokio::test]
async fn a_replay_from_zero_completes_partial_claims() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    world.append(batch(&rank, 4, vec![reset()])).await;
    world.append(batch(&rank, 5, vec![stored(PATH, 0)])).await;
    let running = world.start().await;
    assert_eq!(running.state(&rank).await, Some(TargetState::Partial));

    for seq in 0..=5 {
        let path = &[9, seq];
        world.append(batch(&rank, seq, vec![stored(path, 0)])).await;
    }

    until!(
        "complete",
        running.state(&rank).await == Some(TargetState::Ready)
    );
    assert_eq!(running.digests().await[0].blocks, 7);
    assert!(running.overlap(PATH, false).await.groups.is_empty());
}

#[tokio::test]
async fn a_batch_in_parts_is_applied_when_all_are_in() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    let part = |part: u32, from: usize, until: usize| KvBatch {
        part,
        parts: 3,
        ..batch(&rank, 0, vec![stored(&PATH[..until], from)])
    };
    world.append(part(0, 0, 2)).await;
    world.append(part(1, 2, 3)).await;
    let running = world.start().await;
    assert!(running.digests().await.is_empty());

    world.append(part(1, 2, 3)).await;
    world.append(part(2, 3, 4)).await;

    until!("applied", !running.digests().await.is_empty());
    assert_eq!(running.overlap(PATH, false).await.groups[0].depths.gpu, 4);
    assert!(world.asked().is_empty());
}

#[tokio::test]
async fn a_higher_incarnation_ends_the_lower_and_what_is_queued_of_it_is_refused() {
    let (world, _) = World::new();
    let (old, new) = (target("w#1/0"), target("w#2/0"));
    world.append(batch(&old, 0, vec![stored(PATH, 0)])).await;
    let running = world.start().await;
    assert_eq!(running.state(&old).await, Some(TargetState::Ready));

    world.incarnate("w", 2).await;
    until!("fenced", running.digests().await.is_empty());
    world.append(batch(&old, 1, vec![stored(PATH, 0)])).await;
    world
        .append(batch(&new, 0, vec![stored(&PATH[..1], 0)]))
        .await;

    until!("followed", running.state(&new).await.is_some());
    let answer = running.overlap(PATH, false).await;
    assert_eq!(answer.groups.len(), 1);
    assert_eq!(answer.groups[0].targets, [new]);
    assert_eq!(
        running.metric("rankway_index_batches_total", Some("fenced")),
        1.0
    );
}

/// A batch that names a rank in whose partition it is not, here one that clears it: who wrote it speaks for another rank.
#[tokio::test]
async fn a_batch_in_another_ranks_partition_is_refused_and_counted() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    world.append(batch(&rank, 0, vec![stored(PATH, 0)])).await;
    let running = world.start().await;
    let held = running.digests().await;
    let own = kv_events_of(&rank.worker, rank.dp_rank);
    for index in (0..16).filter(|it| *it != own.index) {
        let at = Partition { index, ..own };
        let forged = Record(batch(&rank, 1, vec![KvOp::Cleared]).to_bytes());
        world.bus.append(&at, vec![forged]).await.unwrap();
    }
    until!(
        "refused",
        running.metric("rankway_index_batches_total", Some("misplaced")) == 15.0
    );
    assert_eq!(running.digests().await, held);
    assert_eq!(running.state(&rank).await, Some(TargetState::Ready));
}

/// Epochs are raised one by one: whoever writes one near the last there is would have all that comes later refused.
#[tokio::test]
async fn a_batch_of_an_epoch_far_above_the_workers_is_refused_and_counted() {
    let (world, _) = World::new();
    let (rank, forged, next) = (
        target("w#1/0"),
        target("w#18446744073709551615/0"),
        target("w#2/0"),
    );
    world.append(batch(&rank, 0, vec![stored(PATH, 0)])).await;
    let running = world.start().await;
    world.append(batch(&forged, 0, vec![stored(PATH, 0)])).await;
    until!(
        "refused",
        running.metric("rankway_index_batches_total", Some("leap")) == 1.0
    );
    assert_eq!(running.state(&rank).await, Some(TargetState::Ready));
    assert_eq!(running.state(&forged).await, None);

    world.append(batch(&next, 0, vec![stored(PATH, 0)])).await;
    until!("followed", running.state(&next).await.is_some());
}

/// Under a key that names another: who may write that one speaks for `v`, not for `w`.
#[tokio::test]
async fn a_registration_under_anothers_key_is_refused() {
    let (mut world, _) = World::new();
    world.gone_grace_seconds = 0;
    let rank = target("w#1/0");
    world.append(batch(&rank, 0, vec![stored(PATH, 0)])).await;
    let value = FleetEntry::Worker(worker("w", None)).to_bytes();
    let key = Key("v".into());
    let put = world.bus.put(&FLEET.table, key, Some(value), Expect::Any);
    put.await.unwrap();
    let running = world.start().await;
    until!("dropped", running.digests().await.is_empty());
}

#[tokio::test]
async fn a_worker_gone_for_its_grace_is_dropped_and_refused_until_it_registers_again() {
    let (mut world, _) = World::new();
    world.gone_grace_seconds = 0;
    let rank = target("w#1/0");
    world.register(worker("w", None)).await;
    world.append(batch(&rank, 0, vec![stored(PATH, 0)])).await;
    let running = world.start().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(running.state(&rank).await, Some(TargetState::Ready));

    world.deregister("w").await;
    until!("dropped", running.digests().await.is_empty());
    world.append(batch(&rank, 1, vec![stored(PATH, 0)])).await;
    until!(
        "refused",
        running.metric("rankway_index_batches_total", Some("gone")) == 1.0
    );

    world.register(worker("w", None)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.append(batch(&rank, 2, vec![stored(PATH, 0)])).await;
    until!("asked", world.asked() == [(rank.clone(), EventSeq::new(0))]);
}

#[tokio::test]
async fn a_worker_that_was_dropped_and_is_back_at_its_epoch_is_asked_for_all_its_ranks() {
    let (mut world, _) = World::new();
    world.gone_grace_seconds = 0;
    world.register(worker("w", None)).await;
    let told = history(2, 5);
    for batch in &told {
        world.append(batch.clone()).await;
    }
    let ranks = [target("w#1/0"), target("w#1/1")];
    let running = world.start().await;
    world.deregister("w").await;
    until!("dropped", running.digests().await.is_empty());
    assert!(world.asked().is_empty());

    world.register(worker("w", None)).await;

    let asked = |rank: &Target| world.asked().contains(&(rank.clone(), EventSeq::new(0)));
    until!("asked", ranks.iter().all(asked));
    let suspect = ranks.clone().map(|it| (it, TargetState::Suspect));
    assert_eq!(running.overlap(PATH, false).await.not_ready, suspect);
    for batch in told.iter().filter(|it| it.seq < EventSeq::new(4)) {
        world.append(batch.clone()).await;
    }
    until!(
        "followed",
        running.metric("rankway_index_batches_total", Some("applied")) == 10.0 + 8.0
    );
    assert_eq!(running.overlap(PATH, false).await.not_ready, suspect);
    for batch in told.iter().filter(|it| it.seq == EventSeq::new(4)) {
        world.append(batch.clone()).await;
    }
    until!(
        "ready",
        running.overlap(PATH, false).await.not_ready.is_empty()
    );
    assert_eq!(contents(&running.digests().await), rebuilt(&told));
}

#[tokio::test]
async fn a_worker_that_was_dropped_and_is_back_at_a_higher_epoch_is_asked_for_nothing() {
    let (mut world, _) = World::new();
    world.gone_grace_seconds = 0;
    let (rank, other) = (target("w#1/0"), target("v#1/0"));
    for target in [&rank, &other] {
        world.register(worker(target.worker.as_str(), None)).await;
        world.append(batch(target, 0, vec![stored(PATH, 0)])).await;
    }
    let running = world.start().await;
    world.deregister("w").await;
    until!("dropped", running.state(&rank).await.is_none());
    world.incarnate("w", 2).await;
    world.incarnate("v", 2).await;
    until!("both fenced", running.digests().await.is_empty());

    world.register(worker("w", None)).await;
    world
        .append(batch(&target("w#2/0"), 0, vec![stored(PATH, 0)]))
        .await;
    until!("followed", !running.digests().await.is_empty());
    tokio::time::sleep(Duration::from_millis(500)).await;

    assert!(world.asked().is_empty());
    assert!(running.overlap(PATH, false).await.not_ready.is_empty());
}

#[tokio::test]
async fn a_log_that_begins_anew_is_resynchronised_from_zero() {
    let (world, bus) = World::new();
    let rank = target("w#1/0");
    for seq in 0..3 {
        let path = &[seq];
        world.append(batch(&rank, seq, vec![stored(path, 0)])).await;
    }
    let running = world.start().await;
    assert_eq!(running.digests().await[0].blocks, 3);

    bus.begin_anew(&kv_events_of(&rank.worker, rank.dp_rank))
        .unwrap();

    until!("asked", world.asked() == [(rank.clone(), EventSeq::new(0))]);
    assert_eq!(running.state(&rank).await, Some(TargetState::Suspect));
    assert_eq!(running.digests().await[0].blocks, 3);
    for seq in 0..3 {
        let path = &[seq, seq];
        world.append(batch(&rank, seq, vec![stored(path, 0)])).await;
    }
    until!(
        "ready",
        running.state(&rank).await == Some(TargetState::Ready)
    );
    assert_eq!(running.digests().await[0].blocks, 6);
}

#[tokio::test]
async fn streams_that_end_are_opened_again() {
    let (world, bus) = World::new();
    let rank = target("w#1/0");
    world.append(batch(&rank, 0, vec![stored(PATH, 0)])).await;
    let running = world.start().await;

    bus.end_streams();
    world.append(batch(&rank, 1, vec![stored(&[7], 0)])).await;

    until!("followed", running.digests().await[0].blocks == 5);
    assert_eq!(running.state(&rank).await, Some(TargetState::Ready));
    world.incarnate("w", 2).await;
    until!("fenced", running.digests().await.is_empty());
}

#[tokio::test]
async fn the_ceiling_counts_what_earlier_requests_carried() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    world
        .append(batch(&rank, 0, vec![stored(&PATH[..2], 0)]))
        .await;
    let running = world.start().await;

    let first = running.overlap(PATH, false).await;
    assert_eq!((first.stored, first.ceiling), (2, 2));
    let recorded = running.overlap(PATH, true).await;
    assert_eq!((recorded.stored, recorded.ceiling), (2, 2));
    let later = running.overlap(PATH, false).await;
    assert_eq!((later.stored, later.ceiling), (2, 4));
    assert!(later.index_age < Duration::from_secs(10));
}
