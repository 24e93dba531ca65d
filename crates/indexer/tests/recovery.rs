//! `kill -9` of an indexer that holds much, and how soon the next one answers as it did.
//!
//! Small by default. The figures of a large one, as with
//! `RANKWAY_RECOVERY_MEMBERSHIPS=2300000 cargo test --release -p indexer --test recovery -- --nocapture`,
//! are printed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bus_local::LocalBus;
use contracts::topics::LAYOUT;
use domain::{KvBatch, Target};
use tokio::time::Instant;
use world::{NotingFeed, append, batch, contents, rebuilt, spawn_child, start, stored, until};

const CHILD: &str = "the_child_that_is_killed";
const WORKERS: u64 = 7;
/// Blocks in one sequence, and in one batch.
const DEPTH: u64 = 512;

/// Memberships of one worker.
fn share() -> u64 {
    let all = option_env!("RANKWAY_RECOVERY_MEMBERSHIPS").unwrap_or("70000");
    all.parse::<u64>().unwrap() / WORKERS
}

fn target(number: u64) -> Target {
    format!("w{number}#1/0").parse().unwrap()
}

/// The blocks of a worker's sequence, of which all workers hold the first half.
fn path(number: u64, seq: u64) -> Vec<u64> {
    let own = (DEPTH / 2..DEPTH).map(|block| (number << 40) | (seq << 20) | block);
    let common = (0..DEPTH / 2).map(|block| (seq << 20) | block);
    common.chain(own).collect()
}

/// One more sequence of a worker.
fn told(number: u64, seq: u64) -> KvBatch {
    batch(&target(number), seq, vec![stored(&path(number, seq), 0)])
}

/// Run by the next test in a process of its own, in a folder with a bus; otherwise it has nothing to do.
#[tokio::test]
async fn the_child_that_is_killed() {
    if !Path::new("bus").exists() {
        return;
    }
    let bus = Arc::new(LocalBus::open(Path::new("bus"), &LAYOUT).await.unwrap());
    let feed = Arc::new(NotingFeed::default());
    let running = start(bus.clone(), feed, Path::new("index"), 3600);
    running.ready().await;
    for seq in 0..share().div_ceil(DEPTH) {
        for number in 0..WORKERS {
            append(&*bus, told(number, seq)).await;
        }
    }
    let all = share().div_ceil(DEPTH) * WORKERS;
    let applied = || running.metric("rankway_index_batches_total", Some("applied"));
    until!("applied", applied() == all as f64);
    let journal = || running.metric("rankway_index_store_bytes_total", Some("journal"));
    until!("saved", (all * DEPTH * 16) as f64 <= journal());
    fs::write("progress", "told everything").unwrap();
    for seq in share().div_ceil(DEPTH).. {
        for number in 0..WORKERS {
            append(&*bus, told(number, seq)).await;
            // Whole, whenever the process ends.
            fs::write("last.new", format!("{number} {seq}")).unwrap();
            fs::rename("last.new", "last").unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn resident_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|it| it.starts_with("VmRSS:"));
    let kib = line.and_then(|it| it.split_whitespace().nth(1));
    kib.and_then(|it| it.parse().ok()).unwrap_or(0) / 1024
}

#[tokio::test]
async fn a_killed_indexer_that_holds_much_soon_answers_as_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = spawn_child(CHILD, folder.path());
    while !folder.path().join("progress").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the child has ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(1300)).await;
    child.kill().unwrap();
    child.wait().unwrap();

    let began = Instant::now();
    let bus = LocalBus::open(&folder.path().join("bus"), &LAYOUT).await;
    let bus = Arc::new(bus.unwrap());
    let bus_opened = began.elapsed();
    let before = resident_mib();
    let began = Instant::now();
    let feed = Arc::new(NotingFeed::default());
    let running = start(bus, feed, &folder.path().join("index"), 3600);
    // The store's own component waits for nothing but being read.
    until!(
        "read",
        !running.health.missing().contains_key("index store")
    );
    let store_read = began.elapsed();
    running.ready().await;
    let ready = began.elapsed();

    let last = fs::read_to_string(folder.path().join("last")).unwrap();
    let (number, seq) = last.split_once(' ').unwrap();
    let (number, seq): (u64, u64) = (number.parse().unwrap(), seq.parse().unwrap());
    let digests = contents(&running.digests().await);
    let memberships: u64 = digests.iter().map(|it| it.1).sum();
    let read_again = running.metric("rankway_index_batches_total", Some("applied"));
    eprintln!(
        "{memberships} memberships of {WORKERS} workers: bus open {bus_opened:?}, store read {store_read:?}, \
         level with the log {ready:?}, {read_again} batches read again, {} MiB resident ({before} before)",
        resident_mib()
    );
    // What the child was told it had acknowledged is there; one more batch may have been on its way.
    let until = |of: u64| seq + u64::from(of <= number);
    let mut all = Vec::new();
    for of in 0..WORKERS {
        all.extend((0..until(of)).map(|seq| told(of, seq)));
    }
    let one_more = [told((number + 1) % WORKERS, until((number + 1) % WORKERS))];
    let expected = rebuilt(&all);
    all.extend(one_more);
    assert!(digests == expected || digests == rebuilt(&all));
    let told_later = memberships / DEPTH - share().div_ceil(DEPTH) * WORKERS;
    assert!(
        read_again <= told_later as f64,
        "what was saved was read again"
    );
    let broken = running.metric("rankway_index_store_broken_total", None);
    assert_eq!(broken, 0.0);
    let answer = running.overlap(&path(0, 0), false).await;
    assert_eq!(answer.groups[0].depths.gpu, DEPTH as u32);
    assert!(answer.unknown.is_nothing());
}
