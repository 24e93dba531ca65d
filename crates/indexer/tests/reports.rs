//! Public reports of indexes that went wrong, each as its whole kind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use bus::{Expect, Key};
use contracts::topics::FLEET;
use domain::{EventSeq, KvBatch, KvOp, TargetState};
use world::{Running, World, batch, removed, reset, stored, target, until, worker};

const PATH: &[u64] = &[1, 2, 3, 4];

/// Which of `ranks` hold how many leading blocks of `path`.
async fn held(running: &Running, ranks: &[&str], path: &[u64]) -> Vec<u32> {
    let groups = running.overlap(path, false).await.groups;
    let depth = |rank: &&str| {
        let of_rank = groups.iter().find(|it| it.targets.contains(&target(rank)));
        of_rank.map_or(0, |it| it.depths.gpu)
    };
    ranks.iter().map(depth).collect()
}

/// <https://github.com/ai-dynamo/dynamo/pull/7463> (BC-34).
#[tokio::test]
async fn a_stream_that_begins_in_the_middle_is_suspect_until_its_beginning_comes() {
    for first in [1, 2, 17, 1_000] {
        let (world, _) = World::new();
        let rank = target("w#1/0");
        let late = batch(&rank, first, vec![stored(PATH, 0)]);
        world.append(late.clone()).await;
        let running = world.start().await;
        until!("asked", !world.asked().is_empty());
        assert_eq!(world.asked()[0], (rank.clone(), EventSeq::new(0)));
        let not_ready = running.overlap(PATH, false).await.not_ready;
        assert_eq!(not_ready, [(rank.clone(), TargetState::Suspect)]);
        assert_eq!(held(&running, &["w#1/0"], PATH).await, [0]);

        for seq in 0..first {
            world.append(batch(&rank, seq, Vec::new())).await;
        }
        world.append(late).await;

        until!(
            "filled",
            running.state(&rank).await == Some(TargetState::Ready)
        );
        assert_eq!(held(&running, &["w#1/0"], PATH).await, [4]);
    }
}

/// <https://github.com/ai-dynamo/dynamo/pull/7072> (BC-35): what stands in for lost batches has a number of its
/// own, far from the cursor.
#[tokio::test]
async fn what_replaces_lost_batches_moves_the_cursor_forward_and_is_asked_for_once() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    for seq in 0..=100 {
        world.append(batch(&rank, seq, Vec::new())).await;
    }
    let running = world.start().await;
    world.append(batch(&rank, 140, Vec::new())).await;
    until!("asked", !world.asked().is_empty());

    world.append(batch(&rank, 130, vec![reset()])).await;
    for seq in 131..=151 {
        world
            .append(batch(&rank, seq, vec![stored(&[seq], 0)]))
            .await;
    }
    // The same once more, as another reader may have asked for it.
    world.append(batch(&rank, 130, vec![reset()])).await;
    world
        .append(batch(&rank, 151, vec![stored(&[151], 0)]))
        .await;

    until!(
        "repaired",
        running.state(&rank).await == Some(TargetState::Partial)
    );
    world.append(batch(&rank, 152, vec![stored(PATH, 0)])).await;
    until!("next", held(&running, &["w#1/0"], PATH).await == [4]);
    assert_eq!(running.digests().await[0].blocks, 21 + 4);
    assert_eq!(world.asked(), [(rank, EventSeq::new(101))]);
}

/// <https://github.com/ai-dynamo/dynamo/pull/5873> (BC-36).
#[tokio::test]
async fn of_all_ranks_of_all_workers_only_those_with_a_hole_are_suspect() {
    let (world, _) = World::new();
    let ranks = ["v#1/0", "v#1/1", "w#1/0", "w#1/1", "w#1/2"];
    let holed = ["v#1/1", "w#1/0", "w#1/2"];
    for rank in ranks {
        let seqs: &[u64] = if holed.contains(&rank) {
            &[0, 2]
        } else {
            &[0, 1, 2]
        };
        for seq in seqs {
            world
                .append(batch(&target(rank), *seq, vec![stored(&[*seq], 0)]))
                .await;
        }
    }
    let running = world.start().await;

    for rank in ranks {
        let expected = match holed.contains(&rank) {
            true => TargetState::Suspect,
            false => TargetState::Ready,
        };
        assert_eq!(running.state(&target(rank)).await, Some(expected), "{rank}");
    }
}

/// <https://github.com/vllm-project/aibrix/pull/2723> (BC-38).
#[tokio::test]
async fn a_removal_takes_from_its_own_rank_and_a_second_one_takes_nothing() {
    let (world, _) = World::new();
    let ranks = ["v#1/0", "w#1/0", "w#1/1"];
    for rank in ranks {
        world
            .append(batch(&target(rank), 0, vec![stored(&[1], 0)]))
            .await;
    }
    for seq in 1..=3 {
        let batch = batch(&target("w#1/0"), seq, vec![removed(&[1]), removed(&[9])]);
        world.append(batch).await;
    }
    let running = world.start().await;

    assert_eq!(held(&running, &ranks, &[1]).await, [1, 0, 1]);
    let blocks = |worker: &str| running.metric("rankway_index_blocks", Some(worker));
    until!("reported", blocks("w") == 1.0 && blocks("v") == 1.0);
    let ops = |result| running.metric("rankway_index_op_blocks_total", Some(result));
    assert_eq!((ops("removed"), ops("unknown")), (1.0, 5.0));
    // It can be stored again, once.
    world
        .append(batch(&target("w#1/0"), 4, vec![stored(&[1], 0)]))
        .await;
    until!("stored", held(&running, &ranks, &[1]).await == [1, 1, 1]);
    assert!(0.0 < running.metric("rankway_index_lag_seconds", Some("w")));
}

/// <https://github.com/ai-dynamo/dynamo/pull/7973> (BC-40).
#[tokio::test]
async fn a_clear_empties_its_own_rank_alone() {
    let (world, _) = World::new();
    let ranks = ["v#1/1", "w#1/0", "w#1/1", "w#1/2"];
    for rank in ranks {
        world
            .append(batch(&target(rank), 0, vec![stored(PATH, 0)]))
            .await;
    }
    let running = world.start().await;
    assert_eq!(held(&running, &ranks, PATH).await, [4, 4, 4, 4]);

    let cleared = vec![KvOp::Cleared, stored(&[8], 0)];
    world.append(batch(&target("w#1/1"), 1, cleared)).await;

    until!(
        "cleared",
        held(&running, &ranks, &[8]).await == [0, 0, 1, 0]
    );
    assert_eq!(held(&running, &ranks, PATH).await, [4, 4, 0, 4]);
}

/// <https://github.com/llm-d/llm-d-router/pull/1738>, <https://github.com/volcano-sh/kthena/issues/1513> (BC-42).
#[tokio::test]
async fn events_queued_behind_the_removal_of_a_worker_are_dropped_by_its_tombstone() {
    let (mut world, _) = World::new();
    world.gone_grace_seconds = 0;
    world.register(worker("w", None)).await;
    let ranks = [target("w#2/0"), target("w#2/1")];
    for rank in &ranks {
        world.append(batch(rank, 199, vec![reset()])).await;
        world.append(batch(rank, 200, vec![stored(PATH, 0)])).await;
    }
    let running = world.start().await;
    until!("held", running.digests().await.len() == 2);
    let put = world
        .bus
        .put(&FLEET.table, Key("w".into()), None, Expect::Any);
    put.await.unwrap();
    until!("gone", running.digests().await.is_empty());

    // The next in line, a hole, a part, another rank, an older incarnation: none comes back.
    let part = KvBatch {
        parts: 2,
        ..batch(&ranks[0], 202, vec![stored(PATH, 0)])
    };
    let queued = [
        batch(&ranks[0], 201, vec![stored(PATH, 0)]),
        batch(&ranks[1], 900, vec![stored(PATH, 0)]),
        batch(&target("w#2/7"), 0, vec![stored(PATH, 0)]),
        batch(&target("w#1/0"), 0, vec![stored(PATH, 0)]),
        part,
    ];
    for batch in &queued {
        world.append(batch.clone()).await;
    }

    let dropped = || running.metric("rankway_index_batches_total", Some("gone"));
    until!("dropped", dropped() == queued.len() as f64);
    assert!(running.digests().await.is_empty());
    assert_eq!(running.overlap(PATH, false).await.groups, []);
    assert!(world.asked().is_empty());
    // A later incarnation is another engine.
    world
        .append(batch(&target("w#3/0"), 0, vec![stored(PATH, 0)]))
        .await;
    until!("back", running.digests().await.len() == 1);
}
