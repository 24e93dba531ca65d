//! Who holds a prefix.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bus::{Generation, Offset};
use contracts::grpc::{RemoteIndex, Services, limits};
use contracts::index_store::{Fence, LogCursor, LogCursors};
use contracts::rpc::{
    CallError, DumpItem, DumpStream, DumpedRank, Index, LocateRequest, OverlapAnswer,
    OverlapRequest, PrefixHashes, Shard, TargetDigest,
};
use domain::{
    BlockHash, BlockSize, Depths, DpRank, EngineHash, Epoch, EventSeq, Namespace, OverlapGroup,
    SequenceHash, Target, TargetState,
};
use futures::{StreamExt, stream};
use prefix_index::{Claims, Copies, HeldBlock, RankSnapshot};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::origin::{Origins, TOO_LATE, for_many};
use crate::samples;

type Answers<Q, A> = Mutex<(Option<Q>, Option<Result<A, CallError>>)>;

/// Says each answer once, and keeps what it was asked for it.
#[derive(Default)]
struct Stub {
    overlap: Answers<OverlapRequest, OverlapAnswer>,
    locate: Answers<LocateRequest, Vec<DpRank>>,
    digests: Answers<(), Vec<TargetDigest>>,
    dump: Mutex<Vec<Result<DumpItem, CallError>>>,
}

fn answer<Q, A>(answers: &Answers<Q, A>, asked: Q) -> Result<A, CallError> {
    let mut answers = answers.lock().unwrap();
    answers.0 = Some(asked);
    // A call that its caller has given up may come late, and take the answer to the next.
    answers.1.take().unwrap_or_else(|| {
        Err(CallError::Unavailable {
            service: "indexer",
            why: TOO_LATE.to_owned(),
        })
    })
}

fn prepare<Q, A>(answers: &Answers<Q, A>, answer: Result<A, CallError>) {
    *answers.lock().unwrap() = (None, Some(answer));
}

fn asked<Q, A>(answers: &Answers<Q, A>) -> Option<Q> {
    answers.lock().unwrap().0.take()
}

#[async_trait]
impl Index for Stub {
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        answer(&self.overlap, request)
    }

    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        answer(&self.locate, request)
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        answer(&self.digests, ())
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        let items = std::mem::take(&mut *self.dump.lock().unwrap());
        Ok(stream::iter(items).boxed())
    }
}

fn origins() -> (Arc<Stub>, Origins<dyn Index>) {
    let stub = Arc::new(Stub::default());
    let remote = |peer| -> Arc<dyn Index> { Arc::new(RemoteIndex::new(peer)) };
    let origins = Origins::of(stub.clone() as Arc<dyn Index>, Services::index, remote);
    (stub, origins)
}

fn prefix() -> impl Strategy<Value = PrefixHashes> {
    let sparse = (1..u32::MAX, any::<u32>(), samples::hashes());
    prop_oneof![
        samples::hashes().prop_map(PrefixHashes::Dense),
        sparse.prop_map(|(every, blocks, hashes)| PrefixHashes::Sparse {
            every: NonZeroU32::new(every).unwrap(),
            blocks,
            hashes,
        }),
    ]
}

fn request() -> impl Strategy<Value = OverlapRequest> {
    (samples::namespace(), prefix(), any::<bool>()).prop_map(|(namespace, hashes, record)| {
        OverlapRequest {
            namespace,
            hashes,
            record,
        }
    })
}

fn overlap_answer() -> impl Strategy<Value = OverlapAnswer> {
    let group = (vec(samples::target(), 0..4), any::<[u32; 3]>());
    let group = group.prop_map(|(targets, mut depths)| {
        depths.sort_unstable();
        let [gpu, host, disk] = depths;
        let depths = Depths { gpu, host, disk };
        OverlapGroup { targets, depths }
    });
    let not_ready = vec((samples::target(), samples::state()), 0..4);
    let numbers = any::<(u32, u32, u64)>();
    (vec(group, 0..6), not_ready, numbers, 0_u32..4).prop_map(
        |(groups, not_ready, (ceiling, stored, age), shard)| OverlapAnswer {
            groups,
            ceiling,
            stored,
            not_ready,
            unknown: Shard::new(shard, 4).unwrap().unknown(),
            index_age: Duration::from_nanos(age),
        },
    )
}

#[test]
fn an_overlap_arrives_and_its_answer_comes_back() {
    let (stub, origins) = origins();
    for_many((request(), overlap_answer()), async |(request, answer)| {
        for index in &origins.all {
            prepare(&stub.overlap, Ok(answer.clone()));
            prop_assert_eq!(index.overlap(request.clone()).await, Ok(answer.clone()));
            prop_assert_eq!(asked(&stub.overlap), Some(request.clone()));
        }
        Ok(())
    });
}

#[test]
fn a_locate_arrives_and_its_ranks_come_back() {
    let (stub, origins) = origins();
    let place = (samples::namespace(), samples::worker(), samples::hashes());
    let values = (place, any::<(u64, u64)>(), vec(any::<u32>(), 0..9));
    for_many(values, async |(place, (epoch, wait), ranks)| {
        let (namespace, worker, hashes) = place;
        let request = LocateRequest {
            namespace,
            worker,
            epoch: Epoch::new(epoch),
            hashes: PrefixHashes::Dense(hashes),
            deadline: Duration::from_nanos(wait),
        };
        let ranks: Vec<DpRank> = ranks.into_iter().map(DpRank::new).collect();
        for index in &origins.all {
            prepare(&stub.locate, Ok(ranks.clone()));
            prop_assert_eq!(index.locate(request.clone()).await, Ok(ranks.clone()));
            prop_assert_eq!(asked(&stub.locate), Some(request.clone()));
        }
        Ok(())
    });
}

#[test]
fn digests_come_back() {
    let (stub, origins) = origins();
    let digest = (samples::target(), any::<(u64, u64)>(), samples::state());
    for_many(vec(digest, 0..20), async |digests| {
        let digest = |(target, (blocks, digest), state)| TargetDigest {
            target,
            blocks,
            digest,
            state,
        };
        let digests: Vec<TargetDigest> = digests.into_iter().map(digest).collect();
        for index in &origins.all {
            prepare(&stub.digests, Ok(digests.clone()));
            prop_assert_eq!(index.digests().await, Ok(digests.clone()));
        }
        Ok(())
    });
}

fn claims() -> impl Strategy<Value = Claims> {
    prop_oneof![
        Just(Claims::Complete),
        any::<u64>().prop_map(|announced| Claims::Partial { announced }),
    ]
}

fn held() -> impl Strategy<Value = HeldBlock> {
    let name = prop_oneof![
        any::<u64>().prop_map(EngineHash::Int),
        vec(any::<u8>(), 0..40).prop_map(|it| EngineHash::Bytes(it.into())),
    ];
    let place = (0_u32..3, any::<Option<prop::sample::Index>>(), any::<u64>());
    let copies = any::<(u32, u32, u32)>();
    (place, any::<u32>(), name, copies).prop_map(|(place, group, engine_hash, copies)| {
        let (namespace, parent, block_hash) = place;
        let (gpu, host, disk) = copies;
        HeldBlock {
            namespace,
            // Its place comes later, when it is known what is before.
            parent: parent.map(|it| it.index(usize::MAX) as u32),
            block_hash: BlockHash::new(block_hash),
            group,
            engine_hash,
            copies: Copies { gpu, host, disk },
        }
    })
}

fn snapshot() -> impl Strategy<Value = RankSnapshot> {
    let namespaces = vec(samples::namespace(), 3);
    (claims(), namespaces, vec(held(), 0..40)).prop_map(|(claims, namespaces, mut blocks)| {
        for (place, block) in (0_u32..).zip(&mut blocks) {
            block.parent = block
                .parent
                .filter(|_| place != 0)
                .map(|it| it % place.max(1));
        }
        RankSnapshot {
            claims,
            namespaces,
            blocks,
        }
    })
}

fn dump_item() -> impl Strategy<Value = DumpItem> {
    let cursor = any::<(u32, u64, u64)>().prop_map(|(partition, generation, offset)| LogCursor {
        partition,
        generation: Generation(generation),
        offset: Offset(offset),
    });
    let fence = (samples::worker(), any::<u64>()).prop_map(|(worker, epoch)| Fence {
        worker,
        epoch: Epoch::new(epoch),
    });
    let seqs = any::<(Option<u64>, Option<u64>)>();
    prop_oneof![
        (vec(cursor, 0..5), vec(fence, 0..5)).prop_map(|(cursors, fences)| DumpItem::Begin {
            cursors: LogCursors(cursors),
            fences,
        }),
        (samples::target(), seqs, claims()).prop_map(|(target, (cursor, awaiting), claims)| {
            DumpItem::Rank(DumpedRank {
                target,
                cursor: cursor.map(EventSeq::new),
                awaiting: awaiting.map(EventSeq::new),
                claims,
            })
        }),
        snapshot().prop_map(DumpItem::Blocks),
        Just(DumpItem::End),
    ]
}

#[test]
fn a_dump_comes_whole_and_in_order() {
    let (stub, origins) = origins();
    for_many(vec(dump_item(), 0..12), async |items| {
        let items: Vec<Result<DumpItem, CallError>> = items.into_iter().map(Ok).collect();
        for index in &origins.all {
            *stub.dump.lock().unwrap() = items.clone();
            let dump = index.dump().await.ok().unwrap();
            prop_assert_eq!(dump.collect::<Vec<_>>().await, items.clone());
        }
        Ok(())
    });
}

#[tokio::test]
async fn a_failure_keeps_its_meaning() {
    let (stub, origins) = origins();
    for failure in samples::failures("indexer") {
        for index in &origins.all {
            prepare(&stub.overlap, Err(failure.clone()));
            let answer = index.overlap(sparse(1)).await;
            assert_eq!(answer, Err(failure.clone()));

            let broken = vec![Ok(DumpItem::End), Err(failure.clone())];
            *stub.dump.lock().unwrap() = broken.clone();
            let dump = index.dump().await.ok().unwrap();
            assert_eq!(dump.collect::<Vec<_>>().await, broken);
        }
    }
}

fn sparse(tokens: u32) -> OverlapRequest {
    let blocks = tokens / 16;
    let hashes: Vec<_> = (0..u64::from(blocks)).map(SequenceHash::new).collect();
    OverlapRequest {
        namespace: Namespace {
            model: "m".parse().unwrap(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).unwrap(),
        },
        hashes: PrefixHashes::sparse(&hashes, NonZeroU32::new(16).unwrap()),
        record: true,
    }
}

fn wide_answer(targets: u32) -> OverlapAnswer {
    let target = |rank| -> Target {
        let worker = "w".repeat(128);
        format!("{worker}#1/{rank}").parse().unwrap()
    };
    let group = |rank| OverlapGroup {
        targets: vec![target(rank)],
        depths: Depths {
            gpu: rank,
            host: rank,
            disk: rank,
        },
    };
    OverlapAnswer {
        groups: (0..targets).rev().map(group).collect(),
        not_ready: vec![(target(1), TargetState::Partial)],
        ..OverlapAnswer::default()
    }
}

#[tokio::test]
async fn a_million_tokens_and_five_hundred_targets_are_within_the_limits() {
    let (stub, origins) = origins();
    for index in &origins.all {
        prepare(&stub.overlap, Ok(wide_answer(512)));
        let answer = index.overlap(sparse(1_000_000)).await.unwrap();
        assert_eq!(answer, wide_answer(512));
        assert_eq!(asked(&stub.overlap).unwrap().hashes.blocks(), 62_500);
    }
}

#[tokio::test]
async fn beyond_the_limits_an_error_says_how_far() {
    let (stub, origins) = origins();
    let [_, index] = &origins.all;
    let hashes = vec![SequenceHash::new(1); limits::INDEX_REQUEST / 8];
    let request = OverlapRequest {
        // A dense one would be sent as a sample.
        hashes: PrefixHashes::Sparse {
            every: NonZeroU32::MIN,
            blocks: 16,
            hashes,
        },
        ..sparse(16)
    };
    let CallError::InvalidArgument { why } = index.overlap(request).await.unwrap_err() else {
        panic!("it is too large");
    };
    assert!(why.starts_with("overlap request of 84"), "{why}");
    assert!(why.ends_with("bytes is over the limit of 8454144"), "{why}");
    assert_eq!(asked(&stub.overlap), None, "it was not sent");

    prepare(&stub.overlap, Ok(wide_answer(30_000)));
    let answer = index.overlap(sparse(16)).await.unwrap_err();
    let CallError::InvalidArgument { why } = answer else {
        panic!("{answer:?}");
    };
    assert!(why.starts_with("overlap answer of 4"), "{why}");
    assert!(why.ends_with("bytes is over the limit of 4194304"), "{why}");
}
