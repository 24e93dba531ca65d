//! An index of shards and replicas, of which some die.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use contracts::grpc::Services;
use contracts::rpc::{
    CallError, DumpStream, Index, LocateRequest, OverlapAnswer, OverlapRequest, PrefixHashes,
    Shard, TargetDigest, Unknown,
};
use domain::{BlockSize, DpRank, Namespace, ServiceKind, Share};
use tokio::time::timeout;

use crate::world::{PATIENCE, Process, World};

const KIND: ServiceKind = ServiceKind::Indexer;

/// Follows one shard, in which nothing is, and counts how often it is asked.
struct Stub {
    shard: Shard,
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Index for Stub {
    async fn overlap(&self, _: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(OverlapAnswer {
            unknown: self.shard.unknown(),
            ..OverlapAnswer::default()
        })
    }

    async fn locate(&self, _: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        Ok(Vec::new())
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        Ok(Vec::new())
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        let why = "nothing to dump".to_owned();
        Err(CallError::FailedPrecondition { why })
    }
}

struct Indexer {
    process: Process,
    asked: Arc<AtomicUsize>,
}

async fn indexer(world: &World, id: &str, index: u32, of: u32) -> Indexer {
    let asked = Arc::new(AtomicUsize::new(0));
    let stub = Stub {
        shard: Shard::new(index, of).unwrap(),
        asked: asked.clone(),
    };
    let services = Services::default().index(Arc::new(stub));
    let process = world
        .start((id, KIND, Share::Shard { index, of }), services)
        .await;
    Indexer { process, asked }
}

fn request() -> OverlapRequest {
    OverlapRequest {
        namespace: Namespace {
            model: "m".parse().unwrap(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).unwrap(),
        },
        hashes: PrefixHashes::Dense(Vec::new()),
        record: false,
    }
}

/// Asks until what nothing is known of is as it should be: a busy machine may be later than a shard has time.
async fn until_unknown(world: &World, expected: &Unknown) {
    let seen = async {
        loop {
            let answer = world.fleet.index().overlap(request()).await;
            if answer.is_ok_and(|it| it.unknown == *expected) {
                return;
            }
        }
    };
    timeout(PATIENCE, seen).await.unwrap();
}

#[tokio::test]
async fn without_an_indexer_the_index_is_not_reached() {
    let world = World::new();
    let index = world.fleet.index();
    let answer = index.overlap(request()).await;
    assert_eq!(
        answer,
        Err(CallError::Unreached {
            service: "indexer",
            why: "none is in the fleet".to_owned(),
        })
    );
}

#[tokio::test]
async fn shards_answer_as_one_and_a_replica_takes_the_place_of_a_dead_one() {
    let world = World::new();
    let even = [
        indexer(&world, "even-1", 0, 2).await,
        indexer(&world, "even-2", 0, 2).await,
    ];
    let odd = indexer(&world, "odd", 1, 2).await;
    until_unknown(&world, &Unknown::default()).await;

    // All ask the same replica, so that it knows what requests have carried.
    let [first, second] = even.each_ref().map(|it| it.asked.load(Ordering::Relaxed));
    let [one, other] = even;
    let (asked, spare) = if second < first {
        (one, other)
    } else {
        (other, one)
    };
    let before = spare.asked.load(Ordering::Relaxed);
    drop(asked.process);
    until_unknown(&world, &Unknown::default()).await;
    assert!(before < spare.asked.load(Ordering::Relaxed));

    // Without a replica nothing is known of its part, and of the rest as much as before.
    drop(spare.process);
    until_unknown(&world, &Shard::new(1, 2).unwrap().unknown()).await;

    drop(odd.process);
    let index = world.fleet.index();
    let gone =
        async { while !matches!(index.digests().await, Err(CallError::Unreached { .. })) {} };
    timeout(PATIENCE, gone).await.unwrap();
    let successor = indexer(&world, "odd", 1, 2).await;
    until_unknown(&world, &Shard::new(1, 2).unwrap().unknown()).await;
    assert!(0 < successor.asked.load(Ordering::Relaxed));
}
