//! What the store costs: bytes written and bytes kept, for each byte of events.
//!
//! *Payload* is the encoding of the operations, as they stand in the log: 16 bytes a stored block, 8 a removed
//! one, and a little for each operation. *Written* is what this process handed to the kernel meanwhile
//! (`wchar`); nothing else in it writes. *Kept* is the length of all files of the store, *held* 16 bytes for
//! each block that a rank holds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::fs;
use std::path::Path;

use contracts::Encoding;
use domain::{KvOp, Target, Tier};
use world::{World, batch, stored, until};

const RANKS: u64 = 8;
/// Blocks of one sequence, and sequences that a rank has room for.
const DEPTH: u64 = 256;
const ROOM: u64 = 96;
/// How often the room is filled.
const TURNS: u64 = 3;
const MOST: f64 = 3.0;
/// How many bytes may wait to be saved.
const UNSAVED: f64 = 300_000.0;

fn target(rank: u64) -> Target {
    format!("w#1/{rank}").parse().unwrap()
}

fn sequence(rank: u64, number: u64) -> KvOp {
    let path: Vec<u64> = (0..DEPTH)
        .map(|block| (rank << 40) | (number << 10) | block)
        .collect();
    stored(&path, 0)
}

/// Fills a sequence, and evicts the oldest where there is no more room.
fn step(rank: u64, number: u64) -> Vec<KvOp> {
    let mut ops = vec![sequence(rank, number)];
    if let Some(oldest) = number.checked_sub(ROOM)
        && let KvOp::Stored(old) = sequence(rank, oldest)
    {
        ops.push(KvOp::Removed {
            group: 0,
            engine_hashes: old.blocks.into_iter().map(|it| it.engine_hash).collect(),
            tier: Tier::Gpu,
        });
    }
    ops
}

fn written() -> Option<u64> {
    let io = fs::read_to_string("/proc/self/io").ok()?;
    let line = io.lines().find(|it| it.starts_with("wchar:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn kept(folder: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        bytes += match path.is_dir() {
            true => kept(&path),
            // One that has just been removed takes no room.
            false => fs::metadata(&path).map_or(0, |it| it.len()),
        };
    }
    bytes
}

#[tokio::test]
async fn a_byte_of_events_costs_at_most_three_written_and_three_kept() {
    let Some(before) = written() else {
        eprintln!("skipped: /proc/self/io tells nothing here");
        return;
    };
    let (world, _) = World::new();
    let running = world.start().await;
    let mut payload = 0;
    let mut most_kept = 0;
    for number in 0..ROOM * TURNS {
        for rank in 0..RANKS {
            let ops = step(rank, number);
            payload += ops.iter().map(|it| it.to_bytes().len() as u64).sum::<u64>();
            world.append(batch(&target(rank), number, ops)).await;
        }
        // Events that come faster than the disk takes them are a matter of their own.
        let journal = || running.metric("rankway_index_store_bytes_total", Some("journal"));
        until!("saved", payload as f64 - journal() < UNSAVED);
        if ROOM <= number && number % 10 == 0 {
            most_kept = most_kept.max(kept(&world.store()));
        }
    }
    running.stop().await;

    let held = RANKS * ROOM * DEPTH * 16;
    let [payload, held] = [payload, held].map(|it| it as f64);
    let written = (written().unwrap() - before) as f64;
    let (kept, most_kept) = (kept(&world.store()) as f64, most_kept as f64);
    eprintln!(
        "payload {:.1} MB, written {:.2}x; held {:.1} MB, kept {:.2}x at the end and {:.2}x at most",
        payload / 1e6,
        written / payload,
        held / 1e6,
        kept / held,
        most_kept / held
    );
    assert!(written <= MOST * payload);
    assert!(most_kept <= MOST * held);
    assert!(kept <= MOST * held);
}
