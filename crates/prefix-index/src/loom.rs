//! The writer and a reader in other orders than threads take by themselves: the protocol of versions in every
//! order that the memory model allows, and the whole index in as many as ten seconds allow.

use domain::{BlockHash, EngineHash, KvOp, StoredBlock, StoredBlocks, Tier, sequence_hashes};

use loom::sync::Arc;

use crate::samples::{namespace, target};
use crate::sync::{
    AtomicU64, Conflict, Ordering, begin_read, begin_write, end_read, end_write, is_still,
};
use crate::{Answer, PrefixIndex};

fn stored(path: &[u64], from: usize) -> KvOp {
    let blocks: Vec<BlockHash> = path.iter().copied().map(BlockHash::new).collect();
    let chain = sequence_hashes(&blocks);
    let name = |at: usize| EngineHash::Int(chain[at].get());
    KvOp::Stored(StoredBlocks {
        group: 0,
        parent: from.checked_sub(1).map(name),
        blocks: (from..path.len())
            .map(|at| StoredBlock {
                engine_hash: name(at),
                block_hash: blocks[at],
            })
            .collect(),
        tier: Tier::Gpu,
        namespace: namespace(),
        session: None,
    })
}

fn removed(path: &[u64], at: usize) -> KvOp {
    let blocks: Vec<BlockHash> = path.iter().copied().map(BlockHash::new).collect();
    KvOp::Removed {
        group: 0,
        engine_hashes: vec![EngineHash::Int(sequence_hashes(&blocks)[at].get())],
        tier: Tier::Gpu,
    }
}

/// Applies `before`, then `change` beside a lookup of `path`, which must find one of `depths`.
fn check(before: &[(u32, KvOp)], change: &[(u32, KvOp)], path: &[u64], depths: &[u32]) {
    let mut model = loom::model::Builder::new();
    // All orders are too many for the whole index; those of the protocol alone are all tried.
    model.preemption_bound = Some(2);
    model.max_duration = Some(std::time::Duration::from_secs(10));
    model.max_branches = 10_000_000;
    let (before, change) = (before.to_vec(), change.to_vec());
    let blocks: Vec<BlockHash> = path.iter().copied().map(BlockHash::new).collect();
    let depths = depths.to_vec();
    model.check(move || {
        let mut index = PrefixIndex::new(0);
        for (rank, op) in &before {
            index.apply(&target(*rank), op).expect("nobody is fenced");
        }
        let reader = index.reader();
        let blocks = blocks.clone();
        let depths = depths.clone();
        let key = reader.key(&namespace());
        let looking = loom::thread::spawn(move || {
            let mut answer = Answer::new();
            for request in [true, false] {
                if request {
                    reader.lookup(key, &blocks, &mut answer);
                } else {
                    reader.lookup(key, &sequence_hashes(&blocks), &mut answer);
                }
                let best = answer.best();
                assert!(depths.contains(&best), "{best} is none of {depths:?}");
            }
        });
        for (rank, op) in &change {
            index.apply(&target(*rank), op).expect("nobody is fenced");
        }
        looking.join().expect("the reader ends");
    });
}

/// Two runs with a word each, as far as versions go.
#[derive(Default)]
struct Two {
    versions: [AtomicU64; 2],
    words: [AtomicU64; 2],
}

#[test]
fn what_two_versions_guard_is_read_as_it_was_at_one_moment() {
    loom::model(|| {
        let two = Arc::new(Two::default());
        let writing = {
            let two = Arc::clone(&two);
            loom::thread::spawn(move || {
                // The second goes on only after the first has.
                for run in 0..2 {
                    begin_write(&two.versions[run]);
                    two.words[run].store(1, Ordering::Relaxed);
                    end_write(&two.versions[run]);
                }
            })
        };
        let read = || -> Result<[u64; 2], Conflict> {
            let mut words = [0; 2];
            let mut seen = [0; 2];
            for run in 0..2 {
                seen[run] = begin_read(&two.versions[run])?;
                words[run] = two.words[run].load(Ordering::Relaxed);
            }
            end_read();
            let unchanged = (0..2).all(|run| is_still(&two.versions[run], seen[run]));
            unchanged.then_some(words).ok_or(Conflict)
        };
        if let Ok(words) = read() {
            assert!([[0, 0], [1, 0], [1, 1]].contains(&words), "{words:?}");
        }
        writing.join().expect("the writer ends");
    });
}

const PATH: [u64; 3] = [1, 2, 3];
const OTHER: [u64; 3] = [1, 2, 9];

#[test]
fn a_block_at_the_end_is_there_or_not() {
    check(
        &[(0, stored(&PATH[..2], 0))],
        &[(0, stored(&PATH, 2))],
        &PATH,
        &[2, 3],
    );
}

#[test]
fn a_run_that_goes_and_one_that_takes_its_memory_are_not_confused() {
    check(
        &[(0, stored(&PATH[..1], 0))],
        &[(0, removed(&PATH, 0)), (0, stored(&[7, 8], 0))],
        &PATH,
        &[0, 1],
    );
}

#[test]
fn what_a_target_let_go_before_it_went_on_is_not_held_together_with_it() {
    check(
        &[(0, stored(&PATH, 0))],
        &[(0, removed(&PATH, 0)), (0, stored(&OTHER, 2))],
        &OTHER,
        &[0, 2],
    );
}
