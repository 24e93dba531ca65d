//! Requests that send a sample of their hashes are answered like those that send all.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::cell::Cell;
use std::num::NonZeroU32;

use contracts::rpc::{OverlapAnswer, OverlapRequest, PrefixHashes, overlap_by_sample};
use domain::{EngineHash, KvOp, Tier};
use world::{Running, World, batch, hashes, namespace, removed, stored, target, until};

fn request(path: &[u64], record: bool) -> OverlapRequest {
    OverlapRequest {
        namespace: namespace(),
        hashes: PrefixHashes::Dense(hashes(path)),
        record,
    }
}

/// The answer to a sample, and how many hashes were sent for it.
async fn by_sample(running: &Running, request: OverlapRequest) -> (OverlapAnswer, usize) {
    let sent = Cell::new(0);
    let answer = overlap_by_sample(request, |request| {
        sent.set(sent.get() + request.hashes.sent());
        running.index.overlap(request)
    });
    (answer.await.unwrap(), sent.get())
}

/// `length` blocks, of which the first `shared` are those of every other path.
fn path(shared: u64, length: u64) -> Vec<u64> {
    let own = (shared..length).map(|it| (1 + shared) << 32 | it);
    (0..shared).chain(own).collect()
}

/// Ranks that hold a long chain to different depths, with a hole, in slower memory, and beside it; and one that had
/// another chain once.
async fn long_chains(world: &World) {
    let to_host = KvOp::Retiered {
        group: 0,
        engine_hashes: hashes(&path(2_500, 2_500)[..2_470])[2_440..]
            .iter()
            .map(|it| EngineHash::Int(it.get()))
            .collect(),
        from: Tier::Gpu,
        to: Tier::Host,
    };
    let gone = path(0, 1_500);
    let mut removals: Vec<KvOp> = (1..=gone.len()).map(|it| removed(&gone[..it])).collect();
    removals.reverse();
    let told = [
        vec![stored(&path(2_500, 2_500), 0)],
        vec![stored(&path(1_000, 1_000), 0)],
        vec![stored(&path(2_500, 2_500), 0), removed(&path(1_900, 1_900))],
        vec![
            stored(&path(1_300, 1_800), 0),
            stored(&path(1_310, 1_700), 0),
        ],
        vec![stored(&path(2_500, 2_500), 0), to_host],
        [vec![stored(&gone, 0)], removals].concat(),
        vec![stored(&path(40, 40), 0)],
    ];
    for (rank, ops) in told.into_iter().enumerate() {
        world
            .append(batch(&target(&format!("w#1/{rank}")), 0, ops))
            .await;
    }
}

#[tokio::test]
async fn a_long_request_is_answered_exactly_though_few_of_its_hashes_are_sent() {
    let (world, _) = World::new();
    long_chains(&world).await;
    let running = world.start().await;
    until!("read", running.digests().await.len() == 7);
    let mut asked = vec![path(0, 3_000), path(0, 1_500), path(1_300, 1_800)];
    let ends = (1_280..1_320).chain(1_890..1_925).chain(2_430..2_505);
    let ends = ends.chain([1, 39, 40, 41, 63, 64, 65, 1_000, 1_024]);
    asked.extend(ends.flat_map(|end| [path(end, end), path(end, 3_000)]));
    for path in asked {
        let dense = running.index.overlap(request(&path, false)).await.unwrap();
        let (answer, sent) = by_sample(&running, request(&path, false)).await;
        let index_age = answer.index_age;
        assert_eq!(
            answer,
            OverlapAnswer { index_age, ..dense },
            "{}",
            path.len()
        );
        if 1_024 < path.len() {
            assert!(
                sent <= path.len() / 64 + 1 + 3 * 65,
                "{sent} of {}",
                path.len()
            );
        }
    }
}

#[tokio::test]
async fn what_a_long_request_carried_is_the_ceiling_of_those_that_go_on_from_it() {
    let (world, _) = World::new();
    let running = world.start().await;
    let ceiling = async |path: &[u64], record| {
        let (answer, _) = by_sample(&running, request(path, record)).await;
        answer.ceiling
    };
    assert_eq!(ceiling(&path(2_000, 2_000), true).await, 0);
    assert_eq!(ceiling(&path(2_100, 2_100), true).await, 2_000);
    assert_eq!(ceiling(&path(2_100, 2_300), false).await, 2_100);
    assert_eq!(ceiling(&path(2_000, 2_300), false).await, 2_000);
    // One that leaves them in the middle knows the sample.
    assert_eq!(ceiling(&path(1_990, 2_300), false).await, 1_984);
    assert_eq!(ceiling(&path(1_000, 1_000), false).await, 960);
    // And all blocks of a short one.
    assert_eq!(ceiling(&path(900, 990), true).await, 896);
    assert_eq!(ceiling(&path(899, 2_300), false).await, 899);
    assert_eq!(ceiling(&path(900, 2_300), false).await, 990);
}

#[tokio::test]
async fn a_sample_of_a_request_is_answered_like_all_of_it() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    let path: Vec<u64> = (0..100).collect();
    world
        .append(batch(&rank, 0, vec![stored(&path[..70], 0)]))
        .await;
    let running = world.start().await;
    let dense = hashes(&path);
    let ask = async |blocks: usize, every: u32, record: bool| {
        let every = NonZeroU32::new(every).unwrap();
        let hashes = PrefixHashes::sparse(&dense[..blocks], every);
        let sample = blocks.div_ceil(every.get() as usize);
        assert_eq!(hashes.sent(), if sample == 1 { blocks } else { sample });
        let request = OverlapRequest {
            namespace: namespace(),
            hashes,
            record,
        };
        running.index.overlap(request).await
    };

    for (blocks, expected) in [(70, 70), (64, 64), (100, 64), (33, 33), (15, 15), (16, 16)] {
        let answer = ask(blocks, 16, false).await.unwrap();
        assert_eq!(answer.groups[0].depths.gpu, expected, "{blocks}");
        assert_eq!(answer.stored, expected, "{blocks}");
    }
    assert_eq!(ask(100, 16, true).await.unwrap().ceiling, 64);
    assert_eq!(ask(100, 16, false).await.unwrap().ceiling, 100);
    assert_eq!(ask(80, 16, false).await.unwrap().ceiling, 80);
    let refused = ask(100, 7, false).await.unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
}
