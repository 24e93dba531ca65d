//! Stopping, being killed, losing the store: what comes back is what was there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bus_local::LocalBus;
use contracts::topics::LAYOUT;
use domain::{KvBatch, TargetState};
use world::{
    NotingFeed, World, append, batch, contents, history, rebuilt, spawn_child, stored, target,
    until,
};

fn applied(running: &world::Running) -> f64 {
    running.metric("rankway_index_batches_total", Some("applied"))
}

#[tokio::test]
async fn a_stopped_indexer_takes_up_where_it_was_and_reads_only_the_rest() {
    let (world, _) = World::new();
    let told = history(4, 200);
    let (before, after) = told.split_at(500);
    for batch in before {
        world.append(batch.clone()).await;
    }
    let running = world.start().await;
    assert_eq!(contents(&running.digests().await), rebuilt(before));
    running.stop().await;
    for batch in after {
        world.append(batch.clone()).await;
    }

    let running = world.start().await;

    assert_eq!(contents(&running.digests().await), rebuilt(&told));
    assert_eq!(applied(&running), after.len() as f64);
    assert!(world.asked().is_empty());
}

#[tokio::test]
async fn until_the_log_has_been_read_the_index_says_so_instead_of_nothing() {
    let (world, _) = World::new();
    let path = [1, 2, 3];
    let told = batch(&target("w#1/0"), 0, vec![stored(&path, 0)]);
    world.append(told).await;
    let running = world.start().await;
    until!("known", running.overlap(&path, false).await.stored == 3);
    running.stop().await;

    let running = world::start(
        world.bus.clone(),
        world.feed.clone(),
        &world.store(),
        world.gone_grace_seconds,
    );
    let asked = running.try_overlap(&path, true).await;

    assert!(asked.is_err_and(|error| error.is_retryable()));
    running.ready().await;
    let answer = running.overlap(&path, false).await;
    assert_eq!((answer.stored, answer.ceiling), (3, 3));
}

#[tokio::test]
async fn an_abandoned_indexer_comes_back_equal() {
    let (world, _) = World::new();
    let told = history(4, 200);
    let mut running = world.start().await;
    for (number, batch) in told.iter().enumerate() {
        world.append(batch.clone()).await;
        if number % 150 == 149 {
            tokio::time::sleep(Duration::from_millis(120)).await;
            running.abandon().await;
            running = world.start().await;
        }
    }

    until!(
        "level",
        contents(&running.digests().await) == rebuilt(&told)
    );
    assert!(world.asked().is_empty());
    assert_eq!(
        running.metric("rankway_index_store_broken_total", None),
        0.0
    );
}

#[tokio::test]
async fn a_suspect_rank_is_still_suspect_after_a_restart() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    for seq in [0, 2] {
        world
            .append(batch(&rank, seq, vec![stored(&[seq], 0)]))
            .await;
    }
    world.start().await.stop().await;

    let running = world.start().await;

    assert_eq!(running.state(&rank).await, Some(TargetState::Suspect));
    until!("asked again", world.asked().len() == 2);
}

#[tokio::test]
async fn parts_read_before_a_restart_are_read_again() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    let part = |part: u32, path: &[u64]| KvBatch {
        part,
        parts: 2,
        ..batch(&rank, 1, vec![stored(path, 0)])
    };
    world.append(batch(&rank, 0, vec![stored(&[1], 0)])).await;
    world.append(part(0, &[2])).await;
    world.start().await.stop().await;
    world.append(part(1, &[3])).await;

    let running = world.start().await;

    assert_eq!(running.digests().await[0].blocks, 3);
    assert!(world.asked().is_empty());
}

#[tokio::test]
async fn a_fenced_incarnation_does_not_come_back() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    world.append(batch(&rank, 0, vec![stored(&[1], 0)])).await;
    let running = world.start().await;
    world.incarnate("w", 2).await;
    until!("fenced", running.digests().await.is_empty());
    running.stop().await;

    let running = world.start().await;
    world.append(batch(&rank, 1, vec![stored(&[1], 0)])).await;

    until!(
        "refused",
        running.metric("rankway_index_batches_total", Some("fenced")) == 1.0
    );
    assert!(running.digests().await.is_empty());
}

#[tokio::test]
async fn a_journal_that_outgrows_the_bases_is_passed_and_all_comes_back() {
    let (world, _) = World::new();
    let rank = target("w#1/0");
    let running = world.start().await;
    let mut told = Vec::new();
    for seq in 0..240 {
        let path: Vec<u64> = (0..500).map(|block| seq * 1000 + block).collect();
        told.push(batch(&rank, seq, vec![stored(&path, 0)]));
        world.append(told[seq as usize].clone()).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let base = || running.metric("rankway_index_store_bytes_total", Some("base"));
    until!("a base", 0.0 < base());
    for seq in 240..250 {
        told.push(batch(&rank, seq, vec![stored(&[seq], 0)]));
        world.append(told[seq as usize].clone()).await;
    }
    until!(
        "level",
        contents(&running.digests().await) == rebuilt(&told)
    );
    running.abandon().await;

    let running = world.start().await;

    assert_eq!(contents(&running.digests().await), rebuilt(&told));
    let again = applied(&running);
    assert!(again < 240.0, "{again} batches were read again");
    assert_eq!(
        running.metric("rankway_index_store_broken_total", None),
        0.0
    );
}

/// Opens the catalog of a store just closed: sled lets go of its lock a little after its handle is dropped.
fn catalog(path: &Path) -> sled::Db {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        match sled::open(path.join("catalog")) {
            Ok(db) => return db,
            Err(why) => assert!(tokio::time::Instant::now() < deadline, "{why}"),
        }
    }
}

/// The files of a store whose names begin so.
fn files(path: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).unwrap().map(|it| it.unwrap().path());
    let named = |it: &PathBuf| it.file_name().unwrap().to_str().unwrap().starts_with(name);
    let mut files: Vec<PathBuf> = entries.filter(named).collect();
    files.sort();
    files
}

/// Spoils a stopped indexer's store, and expects it aside and the index rebuilt from the log.
async fn rebuilds_after(spoil: impl FnOnce(&Path)) {
    let (world, _) = World::new();
    let told = history(3, 300);
    for batch in &told {
        world.append(batch.clone()).await;
    }
    world.start().await.stop().await;
    spoil(&world.store());

    let running = world.start().await;

    assert_eq!(contents(&running.digests().await), rebuilt(&told));
    assert!(world.asked().is_empty());
    assert_eq!(
        running.metric("rankway_index_store_broken_total", None),
        1.0
    );
    assert!(world.folder.path().join("index.broken-1").exists());
    running.stop().await;
    let running = world.start().await;
    assert_eq!(contents(&running.digests().await), rebuilt(&told));
    assert_eq!(
        running.metric("rankway_index_store_broken_total", None),
        0.0
    );
}

#[tokio::test]
async fn a_store_of_a_newer_format_is_moved_aside() {
    rebuilds_after(|path| fs::write(path.join("format"), "999").unwrap()).await;
}

#[tokio::test]
async fn a_store_of_the_first_format_is_moved_aside() {
    rebuilds_after(|path| {
        fs::remove_dir_all(path).unwrap();
        drop(sled::open(path).unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_store_with_a_part_of_its_journal_missing_is_moved_aside() {
    rebuilds_after(|path| fs::remove_file(&files(path, "journal-")[0]).unwrap()).await;
}

#[tokio::test]
async fn a_store_with_a_torn_journal_is_moved_aside() {
    rebuilds_after(|path| {
        let part = files(path, "journal-").pop().unwrap();
        let bytes = fs::read(&part).unwrap();
        fs::write(&part, &bytes[..bytes.len() - 1]).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_store_with_a_flipped_bit_is_moved_aside() {
    rebuilds_after(|path| {
        let part = files(path, "journal-").pop().unwrap();
        let mut bytes = fs::read(&part).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        fs::write(&part, bytes).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_store_with_an_unreadable_commit_is_moved_aside() {
    rebuilds_after(|path| {
        let catalog = catalog(path);
        catalog.insert("!commit", &[0xff; 32]).unwrap();
        catalog.flush().unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_was_written_after_the_last_commit_does_not_count() {
    let (world, _) = World::new();
    let told = history(3, 300);
    for batch in &told {
        world.append(batch.clone()).await;
    }
    world.start().await.stop().await;
    let part = files(&world.store(), "journal-").pop().unwrap();
    let mut bytes = fs::read(&part).unwrap();
    bytes.extend_from_slice(&[7; 100]);
    fs::write(&part, bytes).unwrap();
    fs::write(world.store().join("base-9-9"), "torn").unwrap();

    let running = world.start().await;

    assert_eq!(contents(&running.digests().await), rebuilt(&told));
    let broken = running.metric("rankway_index_store_broken_total", None);
    assert_eq!(broken, 0.0);
    assert!(!world.store().join("base-9-9").exists());
}

/// Whatever is overwritten in sled's own file, the outcome is right: what was lost is read from the log again.
#[tokio::test]
async fn any_damage_to_the_catalog_leaves_a_right_index() {
    for (number, part) in [0.0, 0.2, 0.5, 0.8].into_iter().enumerate() {
        let (world, _) = World::new();
        let told = history(3, 300);
        for batch in &told {
            world.append(batch.clone()).await;
        }
        world.start().await.stop().await;
        let file = world.store().join("catalog").join("db");
        let mut bytes = fs::read(&file).unwrap();
        let used = bytes.iter().rposition(|it| *it != 0).unwrap();
        let at = (used as f64 * part) as usize;
        let end = used.min(at + 300);
        bytes[at..end].fill(0xa5);
        if number % 2 == 1 {
            bytes.truncate(end);
        }
        fs::write(&file, bytes).unwrap();

        let running = world.start().await;

        assert_eq!(
            contents(&running.digests().await),
            rebuilt(&told),
            "at {part}"
        );
    }
}

const CHILD: &str = "the_child_that_is_killed";
const TOLD: u64 = 400;

/// Run by the next test in a process of its own, in a folder with a bus; otherwise it has nothing to do.
#[tokio::test]
async fn the_child_that_is_killed() {
    if !Path::new("bus").exists() {
        return;
    }
    let bus = Arc::new(LocalBus::open(Path::new("bus"), &LAYOUT).await.unwrap());
    let running = world::start(
        bus.clone(),
        Arc::new(NotingFeed::default()),
        Path::new("index"),
        3600,
    );
    running.ready().await;
    for batch in history(4, TOLD) {
        append(&*bus, batch).await;
        fs::write("progress", "told something").unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    std::future::pending().await
}

#[tokio::test]
async fn a_killed_indexer_comes_back_equal_to_a_rebuild() {
    for wait_ms in [30, 400, 1100] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = spawn_child(CHILD, folder.path());
        let progress = folder.path().join("progress");
        until!("telling", progress.exists());
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        child.kill().unwrap();
        child.wait().unwrap();

        let bus = LocalBus::open(&folder.path().join("bus"), &LAYOUT)
            .await
            .unwrap();
        let bus = Arc::new(bus);
        let feed = Arc::new(NotingFeed::default());
        let running = world::start(
            bus.clone(),
            feed.clone(),
            &folder.path().join("index"),
            3600,
        );
        running.ready().await;
        let fresh = world::start(bus, feed, &folder.path().join("fresh"), 3600);
        fresh.ready().await;

        let digests = running.digests().await;
        assert!(!digests.is_empty());
        assert_eq!(digests, fresh.digests().await);
        assert_eq!(
            running.metric("rankway_index_store_broken_total", None),
            0.0
        );
        if 1000 < wait_ms {
            assert!(
                applied(&running) < applied(&fresh),
                "the store was of no use"
            );
        }
    }
}
