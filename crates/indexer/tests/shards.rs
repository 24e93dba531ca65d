//! Several indexers as one, and one that begins with another's dump.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bus::{MemoryBus, Offset};
use contracts::rpc::{
    CallError, DumpItem, DumpStream, Index, LocateRequest, OverlapAnswer, OverlapRequest,
    PrefixHashes, Shard, Shards, TargetDigest,
};
use contracts::topics::KV_EVENTS;
use domain::{DpRank, KvBatch, Target, TargetState};
use futures::StreamExt;
use indexer::{Config, Indexer};
use service_kit::CancellationToken;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use world::{
    Running, World, batch, contents, context, hashes, history, namespace, rebuilt, start_with,
    stored, target, until,
};

const DEADLINE: Duration = Duration::from_secs(5);

/// An index that never answers, or only begins a dump.
struct Silent(Option<Arc<dyn Index>>);

#[async_trait]
impl Index for Silent {
    async fn overlap(&self, _request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        std::future::pending().await
    }

    async fn locate(&self, _request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        std::future::pending().await
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        std::future::pending().await
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        let unavailable = || CallError::Unavailable {
            service: "indexer",
            why: "it has just died".to_owned(),
        };
        let whole = self.0.as_ref().ok_or_else(unavailable)?.dump().await?;
        Ok(whole.take(3).boxed())
    }
}

fn config(world: &World, name: &str, shard: Shard) -> Config {
    Config {
        data_dir: world.folder.path().join(name),
        shard,
        gone_grace_seconds: 3600,
        ..Config::default()
    }
}

async fn start_shard(world: &World, name: &str, shard: &str) -> Running {
    let config = config(world, name, shard.parse().unwrap());
    let running = start_with(config, world.bus.clone(), world.feed.clone(), Vec::new());
    running.ready().await;
    running
}

fn request(path: &[u64]) -> OverlapRequest {
    OverlapRequest {
        namespace: namespace(),
        hashes: PrefixHashes::Dense(hashes(path)),
        record: false,
    }
}

/// All paths of three blocks of `history`.
fn paths() -> impl Iterator<Item = Vec<u64>> {
    (0..64).map(|it| vec![it % 4, it / 4 % 4, it / 16])
}

#[tokio::test]
async fn shards_answer_as_one_index_and_a_missing_one_is_unknown() {
    let (world, _) = World::new();
    let told = history(12, 60);
    for batch in &told {
        world.append(batch.clone()).await;
    }
    let whole = world.start().await;
    let [even, odd] = [
        start_shard(&world, "even", "0/2").await,
        start_shard(&world, "odd", "1/2").await,
    ];
    let both = Shards::new(vec![even.index.clone(), odd.index.clone()], DEADLINE);
    let silent: Arc<dyn Index> = Arc::new(Silent(None));
    let half = Shards::new(vec![silent, odd.index.clone()], Duration::from_millis(50));

    let digests = both.digests().await.unwrap();
    assert_eq!(contents(&digests), contents(&whole.digests().await));
    let held = |answer: &OverlapAnswer| -> Vec<(Target, u32)> {
        let groups = answer.groups.iter();
        let mut held: Vec<(Target, u32)> = groups
            .flat_map(|group| {
                group
                    .targets
                    .iter()
                    .map(|it| (it.clone(), group.depths.gpu))
            })
            .collect();
        held.sort();
        held
    };
    let mut unknown = 0;
    for path in paths() {
        let expected = whole.index.overlap(request(&path)).await.unwrap();
        let answer = both.overlap(request(&path)).await.unwrap();
        let index_age = answer.index_age;
        assert_eq!(
            answer,
            OverlapAnswer {
                index_age,
                ..expected.clone()
            }
        );
    }
    for path in paths().take(4) {
        let expected = whole.index.overlap(request(&path)).await.unwrap();
        let answer = half.overlap(request(&path)).await.unwrap();
        let (lost, kept): (Vec<_>, Vec<_>) = held(&expected)
            .into_iter()
            .partition(|(target, _)| answer.unknown.contains(target));
        assert_eq!(held(&answer), kept);
        unknown += lost.len();
    }
    assert!(0 < unknown);
    let none = Shards::new(vec![Arc::new(Silent(None))], Duration::from_millis(1));
    let refused = none.overlap(request(&[1])).await.unwrap_err();
    assert!(refused.is_retryable());
}

/// An index that takes its time.
struct Slow(Arc<dyn Index>, Duration);

#[async_trait]
impl Index for Slow {
    async fn overlap(&self, request: OverlapRequest) -> Result<OverlapAnswer, CallError> {
        sleep(self.1).await;
        self.0.overlap(request).await
    }

    async fn locate(&self, request: LocateRequest) -> Result<Vec<DpRank>, CallError> {
        self.0.locate(request).await
    }

    async fn digests(&self) -> Result<Vec<TargetDigest>, CallError> {
        self.0.digests().await
    }

    async fn dump(&self) -> Result<DumpStream, CallError> {
        self.0.dump().await
    }
}

#[tokio::test]
async fn shards_are_asked_at_once_and_a_late_one_is_unknown() {
    let (world, _) = World::new();
    for batch in history(12, 20) {
        world.append(batch).await;
    }
    let [even, odd] = [
        start_shard(&world, "even", "0/2").await,
        start_shard(&world, "odd", "1/2").await,
    ];
    tokio::time::pause();
    let ask = async |even_after: Duration, odd_after: Duration| {
        let even: Arc<dyn Index> = Arc::new(Slow(even.index.clone(), even_after));
        let odd: Arc<dyn Index> = Arc::new(Slow(odd.index.clone(), odd_after));
        let asked = Instant::now();
        let shards = Shards::new(vec![even, odd], Shards::DEADLINE);
        let answer = shards.overlap(request(&[1])).await.unwrap();
        (answer.unknown, asked.elapsed())
    };
    let in_time = Shards::DEADLINE - Duration::from_millis(5);
    let late = Shards::DEADLINE + Duration::from_millis(5);
    let near = Duration::from_millis(2);

    let (unknown, took) = ask(in_time, in_time).await;
    assert!(unknown.is_nothing());
    assert!(took < in_time + near, "{took:?}: not one after the other");
    let (unknown, took) = ask(late, in_time).await;
    let partitions: Vec<u32> = unknown.partitions().collect();
    assert_eq!(partitions, [0, 2, 4, 6, 8, 10, 12, 14]);
    assert!(took < Shards::DEADLINE + near, "{took:?}");
}

#[tokio::test]
async fn shards_fit_into_one_process() {
    let (world, _) = World::new();
    let told = history(12, 20);
    for batch in &told {
        world.append(batch.clone()).await;
    }
    let context = context();
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let shards = ["0/2", "1/2"].map(|shard| {
        let config = config(&world, &shard.replace('/', "-"), shard.parse().unwrap());
        let (bus, feed) = (world.bus.clone(), world.feed.clone());
        let indexer = Indexer::new(config, bus, feed, context.clone()).unwrap();
        let index = indexer.index();
        tasks.spawn(indexer.run(shutdown.clone()));
        index
    });
    let waiting = context.health.missing();
    assert!(waiting.contains_key("indexer 0/2") && waiting.contains_key("index store 1/2"));
    until!("ready", context.health.missing().is_empty());

    let both = Shards::new(shards.into(), DEADLINE);
    until!(
        "read",
        contents(&both.digests().await.unwrap()) == rebuilt(&told)
    );
    let families = context.registry.gather();
    let batches = families
        .iter()
        .find(|it| it.name() == "rankway_index_batches_total");
    let of_shard = |metric: &prometheus::proto::Metric| -> Vec<String> {
        let labels = metric.get_label().iter();
        let shard = labels.filter(|it| it.name() == "shard");
        shard.map(|it| it.value().to_owned()).collect()
    };
    let metrics = batches.unwrap().get_metric().iter();
    assert_eq!(
        metrics.map(of_shard).collect::<Vec<_>>(),
        [["0/2"], ["1/2"]]
    );
    shutdown.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_prefix_is_located_on_whatever_shard_its_ranks_are() {
    let (world, _) = World::new();
    for rank in 0..8 {
        let told = vec![stored(&[1, 2], 0)];
        world
            .append(batch(&target(&format!("w#1/{rank}")), 0, told))
            .await;
    }
    let [even, odd] = [
        start_shard(&world, "even", "0/2").await,
        start_shard(&world, "odd", "1/2").await,
    ];
    let locate = |path: &[u64]| LocateRequest {
        namespace: namespace(),
        worker: target("w#1/0").worker,
        epoch: target("w#1/0").epoch,
        hashes: PrefixHashes::end(&hashes(path)),
        deadline: Duration::from_millis(20),
    };
    let both = Shards::new(vec![even.index.clone(), odd.index.clone()], DEADLINE);
    let all: Vec<DpRank> = (0..8).map(DpRank::new).collect();
    assert_eq!(both.locate(locate(&[1, 2])).await.unwrap(), all);
    assert_eq!(both.locate(locate(&[2, 1])).await.unwrap(), []);

    let silent: Arc<dyn Index> = Arc::new(Silent(None));
    let half = Shards::new(vec![silent, odd.index.clone()], Duration::from_millis(50));
    let found = half.locate(locate(&[1, 2])).await.unwrap();
    let own = odd.digests().await.into_iter().map(|it| it.target.dp_rank);
    assert_eq!(found, own.collect::<Vec<_>>());
    assert!(!found.is_empty() && found.len() < 8);
    // Somebody it could be with has not said.
    let refused = half.locate(locate(&[2, 1])).await.unwrap_err();
    assert!(refused.is_retryable());
}

#[tokio::test]
async fn a_shard_that_becomes_another_drops_what_it_does_not_follow() {
    let (world, _) = World::new();
    let told = history(12, 40);
    for batch in &told {
        world.append(batch.clone()).await;
    }
    let whole = world.start().await;
    let all = whole.digests().await;
    whole.stop().await;
    for shard in ["0/2", "1/2", "0/1"] {
        let running = start_shard(&world, "index", shard).await;
        let unknown = shard.parse::<Shard>().unwrap().unknown();
        let own = all.iter().filter(|it| !unknown.contains(&it.target));
        let own: Vec<TargetDigest> = own.cloned().collect();
        assert_eq!(running.digests().await, own, "{shard}");
        assert!(!own.is_empty());
        running.stop().await;
    }
    assert!(world.asked().is_empty());
}

/// What the log has lost up to now.
async fn trim(world: &World, bus: &MemoryBus) {
    for at in KV_EVENTS.all_partitions() {
        let tail = world.bus.tail(&at).await.unwrap();
        if let Some(last) = tail.last {
            bus.trim(&at, Offset(last.0.saturating_sub(1))).unwrap();
        }
    }
}

fn long(rank: &Target, seq: u64) -> KvBatch {
    let path: Vec<u64> = (0..3000).map(|block| (seq << 20) | block).collect();
    batch(rank, seq, vec![stored(&path, 0)])
}

#[tokio::test]
async fn a_new_indexer_begins_with_a_siblings_dump_where_the_log_is_too_short() {
    let (world, bus) = World::new();
    let mut told = history(6, 60);
    let (deep, holed) = (target("deep#1/0"), target("holed#3/0"));
    told.extend((0..3).map(|seq| long(&deep, seq)));
    told.push(batch(&holed, 0, vec![stored(&[7], 0)]));
    for batch in &told {
        world.append(batch.clone()).await;
    }
    world.append(batch(&holed, 2, vec![stored(&[9], 0)])).await;
    world.incarnate("ended", 5).await;
    let first = world.start().await;
    until!("level", contents(&first.digests().await) == rebuilt(&told));
    trim(&world, &bus).await;
    let more = [batch(&deep, 3, vec![stored(&[1], 0)])];
    told.extend(more.clone());
    let silent = |it: Option<&Running>| -> Arc<dyn Index> {
        Arc::new(Silent(it.map(|it| it.index.clone())))
    };
    let siblings = || vec![silent(None), silent(Some(&first)), first.index.clone()];
    let start_new = || {
        let config = config(&world, "new", Shard::WHOLE);
        start_with(config, world.bus.clone(), world.feed.clone(), siblings())
    };

    let new = start_new();
    new.ready().await;
    for batch in more {
        world.append(batch).await;
    }
    until!("level", contents(&new.digests().await) == rebuilt(&told));
    assert_eq!(new.state(&holed).await, Some(TargetState::Suspect));
    assert_eq!(new.state(&deep).await, Some(TargetState::Ready));
    until!("saved", world.folder.path().join("new/format").exists());
    new.stop().await;

    // And from its own store.
    let new = start_with(
        config(&world, "new", Shard::WHOLE),
        world.bus.clone(),
        world.feed.clone(),
        Vec::new(),
    );
    new.ready().await;
    assert_eq!(contents(&new.digests().await), rebuilt(&told));
    let read_again = new.metric("rankway_index_batches_total", Some("applied"));
    assert_eq!(read_again, 0.0);
}

#[tokio::test]
async fn a_new_indexer_whose_siblings_all_fail_reads_the_log() {
    let (world, _) = World::new();
    let told = history(4, 60);
    for batch in &told {
        world.append(batch.clone()).await;
    }
    let first = world.start().await;
    let siblings: Vec<Arc<dyn Index>> = vec![
        Arc::new(Silent(None)),
        Arc::new(Silent(Some(first.index.clone()))),
    ];
    let config = config(&world, "new", "1/2".parse().unwrap());
    let new = start_with(config, world.bus.clone(), world.feed.clone(), siblings);
    new.ready().await;

    let unknown = "1/2".parse::<Shard>().unwrap().unknown();
    let mut own = first.digests().await;
    own.retain(|it| !unknown.contains(&it.target));
    assert_eq!(new.digests().await, own);
}

#[tokio::test]
async fn a_dump_is_in_order_and_in_pieces() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    for seq in 0..3 {
        world.append(long(&rank, seq)).await;
    }
    let running = world.start().await;

    let dump = running.index.dump().await.unwrap();
    let items: Vec<DumpItem> = dump.map(Result::unwrap).collect().await;

    assert!(matches!(&items[0], DumpItem::Begin { cursors, .. } if !cursors.0.is_empty()));
    assert!(matches!(&items[1], DumpItem::Rank(it) if it.target == rank));
    let pieces = items[2..items.len() - 1].iter().map(|it| match it {
        DumpItem::Blocks(snapshot) => snapshot.blocks.len(),
        other => panic!("{other:?}"),
    });
    let pieces: Vec<usize> = pieces.collect();
    assert!(
        1 < pieces.len() && 9000 <= pieces.iter().sum::<usize>(),
        "{pieces:?}"
    );
    assert_eq!(items.last(), Some(&DumpItem::End));
}
