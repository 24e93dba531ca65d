//! `kill -9` in the middle of writing a rank's base anew.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use bus_local::LocalBus;
use contracts::topics::LAYOUT;
use world::{NotingFeed, append, batch, spawn_child, start, stored, target, until};

const CHILD: &str = "the_child_that_is_killed";
/// Blocks of a batch: so many that every few batches some rank's base is due.
const BLOCKS: u64 = 2_000;
/// Bases are written and committed within milliseconds, so that not every kill comes in between.
const MOST_KILLS: usize = 30;

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
    let applied = || running.metric("rankway_index_batches_total", Some("applied"));
    for seq in 0.. {
        for rank in 0..3 {
            let path: Vec<u64> = (0..BLOCKS)
                .map(|it| (rank << 50) | (seq << 20) | it)
                .collect();
            let target = target(&format!("w#1/{rank}"));
            append(&*bus, batch(&target, seq, vec![stored(&path, 0)])).await;
        }
        until!("applied", (seq * 3) as f64 <= applied());
    }
}

/// When a file was written last, in seconds and nanoseconds.
type Written = (i64, i64);

/// When each base was written, by its rank's number and its generation.
fn bases(store: &Path) -> BTreeMap<(u64, u64), Written> {
    let files = fs::read_dir(store).into_iter().flatten().flatten();
    let base = |file: fs::DirEntry| {
        let name = file.file_name().into_string().unwrap();
        let (rank, generation) = name.strip_prefix("base-")?.split_once('-')?;
        let of = file.metadata().ok()?;
        let written = (of.mtime(), of.mtime_nsec());
        Some(((rank.parse().ok()?, generation.parse().ok()?), written))
    };
    files.filter_map(base).collect()
}

#[tokio::test]
async fn an_indexer_killed_while_it_writes_a_base_comes_back_equal_to_a_rebuild() {
    let mut in_the_middle = 0;
    for kills in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("index");
        let mut child = spawn_child(CHILD, folder.path());
        let mut seen = 0;
        // The first one, or one that takes the place of another.
        until!("a base", {
            let more = seen.max(bases(&store).len());
            let is_new = seen < more && kills % 3 < more;
            seen = more;
            is_new
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let before = bases(&store);

        let bus = LocalBus::open(&folder.path().join("bus"), &LAYOUT).await;
        let bus = Arc::new(bus.unwrap());
        let feed = Arc::new(NotingFeed::default());
        let running = start(bus.clone(), feed.clone(), &store, 3600);
        running.ready().await;
        let fresh = start(bus, feed, &folder.path().join("fresh"), 3600);
        fresh.ready().await;

        assert_eq!(running.digests().await, fresh.digests().await);
        let broken = running.metric("rankway_index_store_broken_total", None);
        assert_eq!(broken, 0.0, "a base that does not count is no damage");
        // One that was not committed is taken away at the start, and perhaps written again; one that was is kept
        // until there is a newer one.
        let after = bases(&store);
        let is_left_over = |((rank, generation), written): (&(u64, u64), &Written)| {
            let newest = after.range((*rank, 0)..=(*rank, u64::MAX)).next_back();
            match newest {
                Some(((_, kept), at)) if kept == generation => at != written,
                Some(((_, kept), _)) => kept < generation,
                None => true,
            }
        };
        in_the_middle += usize::from(before.iter().any(is_left_over));
        if 2 <= in_the_middle {
            return;
        }
        assert!(
            kills < MOST_KILLS,
            "no kill of {kills} came in the middle of a base"
        );
    }
}
