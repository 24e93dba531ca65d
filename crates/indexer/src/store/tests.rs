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
fn save(
    store: &Store,
    index: &mut PrefixIndex,
    (rank, slots): (&mut StoredRank, &mut Slots),
    ops: Vec<KvOp>,
) {
    let number = rank.next_segment;
    for op in &ops {
        index.apply(&target(), op).unwrap();
    }
    rank.next_segment += 1;
    rank.cursor = Some(EventSeq::new(rank.next_segment));
    rank.claims = one(index).claims;
    let changes = Changes {
        ranks: vec![RankChange {
            number: RankNumber(5),
            rank: rank.clone(),
            segment: Some(Segment { number, ops }),
            slot: slots.take(number),
        }],
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
    let mut slots = Slots::default();
    let mut announcing = Announcing {
        held: Vec::new(),
        next: 0,
        capacity: 3000,
    };
    for round in 0..12 {
        let store = Store::open(folder.path(), 8).unwrap();
        for step in 0..20 {
            save(
                &store,
                &mut index,
                (&mut rank, &mut slots),
                announcing.step(1 + step * 7),
            );
        }
        match round % 4 {
            0 => {}
            1 | 2 => {
                // All, or all but the last few.
                let mut used = slots.used().clone();
                let _kept = used.split_off(&(rank.next_segment - 3 * (round % 2)));
                let folded = store.fold(RankNumber(5), &target(), &used).unwrap();
                slots.free_below(folded.first_segment);
            }
            _ => save(
                &store,
                &mut index,
                (&mut rank, &mut slots),
                vec![KvOp::Cleared],
            ),
        }
        // As an unfinished fold, and one of a larger base, may leave them.
        for generation in 0..2 {
            let beyond = keys::chunk(RankNumber(5), generation, 1000);
            store.db.insert(beyond, "left over").unwrap();
        }

        let mut again = PrefixIndex::new(0);
        let loaded = store.load(&mut again).unwrap();

        assert_eq!(one(&again), one(&index));
        assert_eq!(loaded.ranks[&RankNumber(5)].stored, rank);
        assert_eq!(loaded.ranks[&RankNumber(5)].slots.used(), slots.used());
        assert_eq!(loaded.next_number, 6);
    }
}

#[test]
fn an_erased_rank_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), 8).unwrap();
    let before = store.db.len();
    let mut rank = empty();
    let mut slots = Slots::default();
    let mut announcing = Announcing {
        held: Vec::new(),
        next: 0,
        capacity: 3000,
    };
    let mut index = PrefixIndex::new(0);
    for _ in 0..20 {
        save(
            &store,
            &mut index,
            (&mut rank, &mut slots),
            announcing.step(100),
        );
    }
    store.fold(RankNumber(5), &target(), slots.used()).unwrap();

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
