//! Engines whose pages are one token, behind real sockets.

use std::path::Path;

use domain::{
    BlockSize, DpRank, EngineHash, EngineKind, Epoch, EventSeq, HashSeed, KvBatch, Namespace,
    Target, Tier, Worker, block_hashes, sequence_hashes,
};
use engine_wire::{Medium, Removed, Stored};
use prefix_index::{Claims, PrefixIndex};
use tempfile::TempDir;

use crate::engine::{BLOCK, Rank};
use crate::fixture::{
    Ingest, Switched, batches, eventually, numbers, register_worker, worker, worker_id,
};

async fn register(bus: &Switched, rank: &Rank) {
    register_worker(
        bus,
        Worker {
            engine: EngineKind::Sglang,
            page_size: BlockSize::new(1).unwrap(),
            ..worker(1, vec![rank.endpoint.clone()])
        },
    )
    .await;
}

/// The name of the last page of a sequence of tokens; some are negative where they are signed.
fn name(tokens: &[u32]) -> EngineHash {
    let mix =
        |name: u64, token: &u32| name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(*token + 1);
    EngineHash::Int(tokens.iter().fold(7, mix))
}

/// The pages of `tokens` from `from` on.
fn chain(tokens: &[u32], from: usize, tier: Tier, salt: Option<&str>) -> Stored {
    Stored {
        block_hashes: (from..tokens.len())
            .map(|at| name(&tokens[..=at]))
            .collect(),
        parent: (0 < from).then(|| name(&tokens[..from])),
        token_ids: tokens[from..].to_vec(),
        opaque_tokens: 0,
        block_size: 1,
        medium: Medium::Tier(tier),
        group: None,
        spec_kind: None,
        lora: None,
        salt: salt.map(Into::into),
        session: None,
    }
}

async fn store(rank: &mut Rank, tokens: &[u32], from: usize) {
    let stored = chain(tokens, from, Tier::Gpu, None);
    rank.publish_pages(true, |batch| batch.stored(&stored))
        .await;
}

async fn remove(rank: &mut Rank, tokens: &[u32], tier: Tier) {
    let removed = Removed {
        block_hashes: vec![name(tokens)],
        medium: Medium::Tier(tier),
        group: None,
    };
    rank.publish_pages(true, |batch| batch.removed(&removed))
        .await;
}

/// What an index that has applied each batch once answers.
struct Followed(PrefixIndex);

impl Followed {
    fn of(log: &[KvBatch]) -> Self {
        let mut index = PrefixIndex::new(0);
        let mut cursor = None;
        for batch in log {
            let position = (batch.target.epoch, batch.seq, batch.part);
            if cursor.is_none_or(|cursor| cursor < position) {
                cursor = Some(position);
                for op in &batch.ops {
                    index.apply(&batch.target, op).unwrap();
                }
            }
        }
        Self(index)
    }

    /// Leading blocks of `tokens` held in each tier or a faster one.
    fn depths(&self, tokens: &[u32], salt: Option<&str>) -> [u32; 3] {
        let block_size = BlockSize::new(BLOCK).unwrap();
        let namespace = Namespace {
            model: "m".parse().unwrap(),
            lora: None,
            salt: salt.map(Into::into),
            block_size,
        };
        let blocks = block_hashes(tokens, block_size, HashSeed::of(None, salt));
        let overlap = self.0.overlap(&namespace, &sequence_hashes(&blocks));
        let depths = overlap.groups.first().map(|it| it.depths);
        let depths = depths.unwrap_or_default();
        [depths.gpu, depths.host, depths.disk]
    }

    fn claims(&self) -> Vec<Claims> {
        self.0.ranks().map(|it| it.claims).collect()
    }
}

async fn followed(bus: &Switched, count: usize) -> Followed {
    Followed::of(&batches(bus, 0, count).await)
}

fn pages(ingest: &Ingest, result: &str) -> u64 {
    ingest.count("rankway_event_pages_total", &[("result", result)])
}

/// Waits until the live socket is heard, with messages that say nothing.
async fn hear(ingest: &Ingest, rank: &mut Rank) {
    ingest.ready().await;
    while ingest.events("published") == 0 {
        rank.publish_pages(true, |_| {}).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let all = rank.published();
    eventually(|| ingest.events("published") == all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_one_token_become_blocks_however_they_are_announced() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, usize::MAX).await;
    register(&bus, &rank).await;
    let ingest = Ingest::start(&bus, data.path());
    hear(&ingest, &mut rank).await;

    let long: Vec<u32> = (0..11).collect();
    store(&mut rank, &long, 0).await;
    let short: Vec<u32> = [0, 1, 2, 3, 4, 5, 90, 91, 92].into();
    for from in 6..short.len() {
        store(&mut rank, &short[..=from], from).await;
    }

    let index = followed(&bus, rank.published() as usize).await;
    assert_eq!(index.depths(&long, None), [2, 2, 2]);
    assert_eq!(index.depths(&short, None), [2, 2, 2]);
    assert_eq!(pages(&ingest, "stored"), 14);
    remove(&mut rank, &short[..8], Tier::Gpu).await;
    remove(&mut rank, &short[..8], Tier::Gpu).await;
    let index = followed(&bus, rank.published() as usize).await;
    assert_eq!(index.depths(&long, None), [2, 2, 2]);
    assert_eq!(index.depths(&short, None), [1, 1, 1]);
    eventually(|| pages(&ingest, "unknown") == 1).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_are_copied_to_the_host_and_leave_the_gpu_are_a_slower_block() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, usize::MAX).await;
    register(&bus, &rank).await;
    let ingest = Ingest::start(&bus, data.path());
    hear(&ingest, &mut rank).await;

    let tokens: Vec<u32> = (0..8).collect();
    store(&mut rank, &tokens, 0).await;
    let copied = chain(&tokens, 0, Tier::Host, None);
    rank.publish_pages(true, |batch| batch.stored(&copied))
        .await;
    let both = followed(&bus, rank.published() as usize).await;
    assert_eq!(both.depths(&tokens, None), [2, 2, 2]);
    for length in (5..=8).rev() {
        remove(&mut rank, &tokens[..length], Tier::Gpu).await;
    }

    let index = followed(&bus, rank.published() as usize).await;
    assert_eq!(index.depths(&tokens, None), [1, 2, 2]);
    remove(&mut rank, &tokens[..8], Tier::Host).await;
    let index = followed(&bus, rank.published() as usize).await;
    assert_eq!(index.depths(&tokens, None), [1, 1, 1]);
    ingest.stop().await;
}

/// Another store as it is at this moment.
fn copied(data: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    let mut todo = vec![(data.to_owned(), copy.path().to_owned())];
    while let Some((from, to)) = todo.pop() {
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(&from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                todo.push((entry.path(), to));
            } else {
                std::fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    copy
}

/// An ingest that soon asks for what its socket has missed.
fn watchful(bus: &Switched, data: &Path) -> Ingest {
    Ingest::start_with(bus, data, |config| config.silence_ms = 200)
}

/// Two blocks and two tokens of a third.
const TOKENS: std::ops::Range<u32> = 0..10;
/// A block that was said after what a killed ingest had kept.
const LATE: [u32; 4] = [50, 51, 52, 53];

/// An ingest in whose log is what [`TOKENS`] and [`LATE`] say, and that has been restarted in between. If it was
/// killed, its store knows nothing of [`LATE`].
async fn restarted(bus: &Switched, rank: &mut Rank, killed: bool) -> (Ingest, [TempDir; 2]) {
    let data = tempfile::tempdir().unwrap();
    register(bus, rank).await;
    let ingest = watchful(bus, data.path());
    let tokens: Vec<u32> = TOKENS.collect();
    for (until, from) in [(5, 0), (10, 5)] {
        store(rank, &tokens[..until], from).await;
    }
    let index = last(bus, rank).await;
    assert_eq!(index.depths(&tokens, None), [2, 2, 2]);
    ingest.stop().await;
    let before = copied(data.path());
    let ingest = watchful(bus, data.path());
    store(rank, &LATE, 0).await;
    for _ in 0..4 {
        rank.publish_pages(false, |_| {}).await;
    }
    let index = last(bus, rank).await;
    assert_eq!(index.depths(&LATE, None), [1, 1, 1]);
    ingest.stop().await;
    let asked = rank.asked().len();
    let kept = if killed { before.path() } else { data.path() };
    let ingest = watchful(bus, kept);
    eventually(|| asked < rank.asked().len()).await;
    (ingest, [data, before])
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_a_ring_that_keeps_everything_completes_what_was_not_whole() {
    for killed in [false, true] {
        let bus = Switched::new();
        let mut rank = Rank::start(0, usize::MAX).await;
        let (ingest, _data) = restarted(&bus, &mut rank, killed).await;

        let tokens: Vec<u32> = (0..12).collect();
        store(&mut rank, &tokens, 10).await;

        let index = last(&bus, &rank).await;
        assert_eq!(index.depths(&tokens, None), [3, 3, 3]);
        assert_eq!(pages(&ingest, "content_lost"), 0);
        remove(&mut rank, &tokens[..6], Tier::Gpu).await;
        remove(&mut rank, &LATE[..1], Tier::Gpu).await;
        let index = last(&bus, &rank).await;
        assert_eq!(index.depths(&tokens, None), [1, 1, 1]);
        assert_eq!(index.depths(&LATE, None), [0, 0, 0]);
        ingest.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_before_a_short_ring_removals_still_remove_the_right_blocks() {
    for killed in [false, true] {
        let bus = Switched::new();
        // At the restart it has all since the second message, and not the first.
        let mut rank = Rank::start(0, 6).await;
        let (ingest, _data) = restarted(&bus, &mut rank, killed).await;

        let tokens: Vec<u32> = (0..12).collect();
        store(&mut rank, &tokens, 10).await;
        // The first two tokens of the third block are not known any more.
        let index = last(&bus, &rank).await;
        assert_eq!(index.depths(&tokens, None), [2, 2, 2]);
        eventually(|| pages(&ingest, "content_lost") == 1).await;
        remove(&mut rank, &tokens[..6], Tier::Gpu).await;
        remove(&mut rank, &LATE[..1], Tier::Gpu).await;

        let index = last(&bus, &rank).await;
        assert_eq!(index.depths(&tokens, None), [1, 1, 1]);
        assert_eq!(index.depths(&LATE, None), [0, 0, 0]);
        let fork: Vec<u32> = [&tokens[..4], &[70, 71, 72, 73]].concat();
        store(&mut rank, &fork, 4).await;
        let index = last(&bus, &rank).await;
        assert_eq!(index.depths(&fork, None), [2, 2, 2]);
        assert_eq!(index.claims(), [Claims::Complete]);
        ingest.stop().await;
    }
}

/// The index once the newest message is in the log, whatever stands there twice.
async fn last(bus: &Switched, rank: &Rank) -> Followed {
    let newest = EventSeq::new(rank.published() - 1);
    let mut count = rank.published() as usize;
    loop {
        let log = batches(bus, 0, count).await;
        if log.iter().any(|it| it.seq == newest) {
            return Followed::of(&log);
        }
        count += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_cannot_be_read_from_the_start_is_then_asked_only_for_what_is_missing() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, usize::MAX).await;
    for length in 1..=3 {
        let stored = chain(&[1, 2, 3][..length], length - 1, Tier::Gpu, None);
        rank.publish_pages(false, |batch| batch.stored(&stored))
            .await;
    }
    register(&bus, &rank).await;
    let ingest = Ingest::start(&bus, data.path());
    batches(&bus, 0, 3).await;
    ingest.stop().await;
    rank.never_end_replays();
    let before = rank.asked().len();

    let ingest = Ingest::start_with(&bus, data.path(), |config| config.replay_timeout_ms = 20);

    eventually(|| before + 2 <= rank.asked().len()).await;
    assert_eq!(rank.asked()[before..before + 2], [0, 2]);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_asks_again_is_told_all_that_is_there_now() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, usize::MAX).await;
    register(&bus, &rank).await;
    let ingest = Ingest::start(&bus, data.path());
    let tokens: Vec<u32> = (0..12).collect();
    for (until, from) in [(5, 0), (10, 5), (12, 10)] {
        let stored = chain(&tokens[..until], from, Tier::Gpu, None);
        rank.publish_pages(false, |batch| batch.stored(&stored))
            .await;
    }
    ingest.ready().await;
    remove(&mut rank, &tokens[..9], Tier::Gpu).await;
    hear(&ingest, &mut rank).await;
    let count = rank.published() as usize;
    let target = Target {
        worker: worker_id(),
        epoch: Epoch::FIRST,
        dp_rank: DpRank::new(0),
    };

    let from = EventSeq::new(1);
    ingest.feed.resync(&target, from).await.unwrap();

    let log = batches(&bus, 0, count + count - 1).await;
    let again = &log[count..];
    assert_eq!(numbers(again).first(), Some(&(1, 1)));
    let index = Followed::of(again);
    assert_eq!(index.depths(&tokens, None), [2, 2, 2]);
    assert_eq!(index.claims(), [Claims::Complete]);
    ingest.stop().await;
}

/// <https://github.com/sgl-project/sglang/issues/24568> (BC-45).
#[tokio::test(flavor = "multi_thread")]
async fn the_salt_of_pages_selects_the_blocks() {
    let (bus, data) = (Switched::new(), tempfile::tempdir().unwrap());
    let mut rank = Rank::start(0, usize::MAX).await;
    register(&bus, &rank).await;
    let ingest = Ingest::start(&bus, data.path());
    let tokens: Vec<u32> = (0..9).collect();
    for from in [0, 5] {
        let until = if from == 0 { 5 } else { 9 };
        let salted = chain(&tokens[..until], from, Tier::Gpu, Some("a"));
        rank.publish_pages(false, |batch| batch.stored(&salted))
            .await;
    }
    let index = followed(&bus, 2).await;
    assert_eq!(index.depths(&tokens, Some("a")), [2, 2, 2]);
    assert_eq!(index.depths(&tokens, Some("b")), [0, 0, 0]);
    assert_eq!(index.depths(&tokens, None), [0, 0, 0]);
    ingest.stop().await;
}
