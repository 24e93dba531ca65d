//! A rank's base and segments, however they are folded, are what was applied.

use domain::{BlockHash, EngineHash, EventSeq, KvOp, StoredBlock, StoredBlocks, Target, Tier};
use prefix_index::{Claims, PrefixIndex, RankSummary};

use super::*;

/// A rank with a cache of `capacity` blocks, and what it announces.
struct Announcing {
    held: Vec<u64>,
    next: u64,
    capacity: usize,
}

impl Announcing {
    /// Fills `blocks` blocks of a new sequence, and evicts what is too much.
    fn step(&mut self, blocks: u64) -> Vec<KvOp> {
        let new: Vec<u64> = (self.next..self.next + blocks).collect();
        self.next += blocks;
        let block = |number: &u64| StoredBlock {
            engine_hash: EngineHash::Int(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            block_hash: BlockHash::new(number.wrapping_mul(0xff51_afd7_ed55_8ccd)),
        };
        let mut ops = vec![KvOp::Stored(StoredBlocks {
            group: 0,
            parent: None,
            blocks: new.iter().map(block).collect(),
            tier: Tier::Gpu,
            namespace: domain::Namespace {
                model: "some/model-of-70b".parse().unwrap(),
                lora: None,
                salt: self.next.is_multiple_of(7).then(|| "salt".into()),
                block_size: domain::BlockSize::new(16).unwrap(),
            },
            session: None,
        })];
        self.held.extend(new);
        let excess = self.held.len().saturating_sub(self.capacity);
        if 0 < excess {
            let evicted: Vec<u64> = self.held.drain(..excess).collect();
            ops.push(KvOp::Removed {
                group: 0,
                engine_hashes: evicted.iter().map(|it| block(it).engine_hash).collect(),
                tier: Tier::Gpu,
            });
        }
        ops
    }
}

fn target() -> Target {
    "w#1/0".parse().unwrap()
}

fn one(index: &PrefixIndex) -> RankSummary {
    index.rank(&target()).unwrap()
}

/// Applies `ops` to `index` and saves them as one segment.
fn save(store: &Store, index: &mut PrefixIndex, rank: &mut StoredRank, ops: Vec<KvOp>) {
    for op in &ops {
        index.apply(&target(), op).unwrap();
    }
    rank.next_segment += 1;
    rank.cursor = Some(EventSeq::new(rank.next_segment));
    rank.claims = one(index).claims;
    let changes = Changes {
        ranks: vec![(RankNumber(5), rank.clone(), Segment { ops })],
        rank_count: 1,
        ..Changes::default()
    };
    store.save(&changes).unwrap();
}

fn empty() -> StoredRank {
    StoredRank {
        target: target(),
        cursor: None,
        awaiting: None,
        claims: Claims::Complete,
        next_segment: 0,
    }
}

#[test]
fn what_was_saved_and_folded_comes_back_as_it_was_applied() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = PrefixIndex::new(0);
    let mut rank = empty();
    let mut announcing = Announcing {
        held: Vec::new(),
        next: 0,
        capacity: 3000,
    };
    for round in 0..12 {
        let store = Store::open(folder.path(), 8).unwrap();
        for step in 0..20 {
            save(&store, &mut index, &mut rank, announcing.step(1 + step * 7));
        }
        match round % 4 {
            0 => {}
            1 => drop(
                store
                    .fold(RankNumber(5), &target(), rank.next_segment - 3)
                    .unwrap(),
            ),
            2 => drop(
                store
                    .fold(RankNumber(5), &target(), rank.next_segment)
                    .unwrap(),
            ),
            _ => save(&store, &mut index, &mut rank, vec![KvOp::Cleared]),
        }
        // As an interrupted fold would leave it.
        let next_base = keys::chunk(RankNumber(5), 1000, 0);
        store.db.insert(next_base, "left over").unwrap();

        let mut again = PrefixIndex::new(0);
        let loaded = store.load(&mut again).unwrap();

        assert_eq!(one(&again), one(&index));
        assert_eq!(loaded.ranks[&RankNumber(5)].stored, rank);
        assert_eq!(loaded.next_number, 6);
        assert!(
            store
                .db
                .get(keys::chunk(RankNumber(5), 1000, 0))
                .unwrap()
                .is_none()
        );
    }
}

#[test]
fn an_erased_rank_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), 8).unwrap();
    let before = store.db.len();
    let mut rank = empty();
    let mut announcing = Announcing {
        held: Vec::new(),
        next: 0,
        capacity: 3000,
    };
    let mut index = PrefixIndex::new(0);
    for _ in 0..20 {
        save(&store, &mut index, &mut rank, announcing.step(100));
    }
    store.fold(RankNumber(5), &target(), 10).unwrap();

    let changes = Changes {
        gone: vec![RankNumber(5)],
        ..Changes::default()
    };
    store.save(&changes).unwrap();
    store.erase(RankNumber(5)).unwrap();

    // The count of ranks is new.
    assert_eq!(store.db.len(), before + 1);
    let loaded = store.load(&mut PrefixIndex::new(0)).unwrap();
    assert!(loaded.ranks.is_empty());
}

#[test]
fn amplification_experiment() {
    let written = || -> u64 {
        let io = std::fs::read_to_string("/proc/self/io").unwrap();
        let line = io.lines().find(|it| it.starts_with("wchar")).unwrap();
        line.split(' ').nth(1).unwrap().parse().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), 64).unwrap();
    let mut ranks: Vec<_> = (0..8u64)
        .map(|number| {
            let a = Announcing {
                held: Vec::new(),
                next: number << 40,
                capacity: 20_000,
            };
            let t: Target = format!("w#1/{number}").parse().unwrap();
            (
                RankNumber(number),
                t.clone(),
                a,
                StoredRank {
                    target: t,
                    ..empty()
                },
                0u64,
                0u64,
            )
        })
        .collect();
    let (mut seg, mut base) = (0u64, 0u64);
    let start = written();
    for save in 0..400u64 {
        let mut changes = Changes {
            rank_count: 8,
            ..Changes::default()
        };
        for p in 0..16 {
            let c = LogCursor {
                generation: bus::Generation(1),
                offset: bus::Offset(save),
            };
            changes.cursors.insert(p, Some(c));
        }
        for (n, _, a, r, ..) in &mut ranks {
            let mut ops = Vec::new();
            for it in 0..60 {
                ops.extend(a.step(if it % 10 == 0 { 64 } else { 1 }));
            }
            r.next_segment += 1;
            changes.ranks.push((*n, r.clone(), Segment { ops }));
        }
        for (n, bytes) in store.save(&changes).unwrap().segments {
            seg += bytes;
            ranks[n.0 as usize].4 += bytes;
        }
        store.flush().unwrap();
        for (n, t, _, r, s, b) in &mut ranks {
            if *s > (1024 * 1024).max(3 * *b) {
                let f = store.fold(*n, t, r.next_segment).unwrap();
                *s -= f.segment_bytes;
                *b = f.base_bytes;
                base += f.base_bytes;
            }
        }
    }
    store.flush().unwrap();
    let physical = written() - start;
    eprintln!(
        "segments {seg} bases {base} physical {physical}: {:.2} disk {}",
        physical as f64 / seg as f64,
        store.db.size_on_disk().unwrap()
    );
}
