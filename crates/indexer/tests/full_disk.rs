//! A disk that is full: the index serves on and says that it is not saved, and is saved again when there is room.
//!
//! It takes a small file system of its own, which only root may mount.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use domain::Target;
use world::{World, batch, contents, rebuilt, stored, until};

/// A file system in memory, for as long as this lives.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path, mib: u64) -> Option<Self> {
        let size = format!("size={mib}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at);
        let mounted = mount.output().is_ok_and(|it| it.status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// Leaves `kib` of room.
fn fill(disk: &Path, mib: u64, kib: u64) -> PathBuf {
    let filler = disk.join("filler");
    let used = Command::new("du").arg("-sk").arg(disk).output().unwrap();
    let used = String::from_utf8(used.stdout).unwrap();
    let used: u64 = used.split_whitespace().next().unwrap().parse().unwrap();
    fs::write(
        &filler,
        vec![1; ((mib * 1024 - used - kib) * 1024) as usize],
    )
    .unwrap();
    filler
}

#[tokio::test]
async fn a_full_disk_is_said_and_everything_is_saved_again_when_there_is_room() {
    const MIB: u64 = 24;
    let (world, _) = World::new();
    let Some(disk) = Disk::mount(world.folder.path(), MIB) else {
        eprintln!("skipped: a file system of a few MiB can be mounted by root only");
        return;
    };
    let rank: Target = "w#1/0".parse().unwrap();
    let mut told = Vec::new();
    let more = |seq: u64| {
        let path: Vec<u64> = (0..500).map(|block| (seq << 20) | block).collect();
        batch(&rank, seq, vec![stored(&path, 0)])
    };
    let running = world.start().await;
    for seq in 0..20 {
        told.push(more(seq));
        world.append(more(seq)).await;
    }
    let journal = || running.metric("rankway_index_store_bytes_total", Some("journal"));
    until!("saved", 0.0 < journal());
    let filler = fill(&disk.0, MIB, 256);

    let failures = || running.metric("rankway_index_store_failures_total", None);
    let mut seq = 20;
    until!("full", {
        told.push(more(seq));
        world.append(more(seq)).await;
        seq += 1;
        0.0 < failures()
    });
    until!("said", !running.health.findings().is_empty());
    let said = running.health.findings()["index store"].join("; ");
    assert!(said.contains("degraded: nothing is saved"), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(running.health.missing().is_empty());
    let degraded = || running.metric("rankway_index_store_degraded", None);
    assert_eq!(degraded(), 1.0);
    for _ in 0..10 {
        told.push(more(seq));
        world.append(more(seq)).await;
        seq += 1;
    }
    until!(
        "served",
        contents(&running.digests().await) == rebuilt(&told)
    );
    until!("tried again", 1.0 < failures());

    fs::remove_file(filler).unwrap();
    until!("saved again", running.health.findings().is_empty());
    assert_eq!(degraded(), 0.0);
    told.push(more(seq));
    world.append(more(seq)).await;
    until!(
        "level",
        contents(&running.digests().await) == rebuilt(&told)
    );
    running.stop().await;
    assert!(!world.folder.path().join("index.old").exists());

    let running = world.start().await;
    assert_eq!(contents(&running.digests().await), rebuilt(&told));
    let read_again = running.metric("rankway_index_batches_total", Some("applied"));
    assert_eq!(read_again, 0.0);
    let broken = running.metric("rankway_index_store_broken_total", None);
    assert_eq!(broken, 0.0);
    running.stop().await;
    drop(disk);
}
