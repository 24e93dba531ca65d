//! Bases and journal, however they take each other's place, are what was applied.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use domain::{
    BlockHash, BlockSize, EngineHash, EventSeq, KvOp, Namespace, StoredBlock, StoredBlocks, Target,
    Tier,
};
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
            namespace: Namespace {
                model: "some/model-of-70b".parse().unwrap(),
                lora: None,
                salt: self.next.is_multiple_of(7).then(|| "salt".into()),
                block_size: BlockSize::new(16).unwrap(),
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

/// A store, and the index that it is to be equal to.
struct Rig {
    folder: tempfile::TempDir,
    store: Store,
    index: PrefixIndex,
    ranks: BTreeMap<RankNumber, StoredRank>,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = open(&folder.path().join("index"));
        let complete = Changes {
            complete: true,
            ..Changes::default()
        };
        store.save(&complete).unwrap();
        Self {
            folder,
            store,
            index: PrefixIndex::new(0),
            ranks: BTreeMap::new(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    /// Applies `ops` to `number`, and saves them with the bases given.
    fn save(&mut self, number: u64, ops: Vec<KvOp>, bases: Vec<(RankNumber, Base)>) {
        let target: Target = format!("w#1/{number}").parse().unwrap();
        for op in &ops {
            self.index.apply(&target, op).unwrap();
        }
        let number = RankNumber(number);
        let cursor = self.ranks.get(&number).and_then(|it| it.cursor);
        let rank = StoredRank {
            cursor: Some(cursor.map_or(EventSeq::new(0), EventSeq::next)),
            awaiting: None,
            claims: self.index.rank(&target).unwrap().claims,
            target,
        };
        self.ranks.insert(number, rank.clone());
        let changes = Changes {
            ranks: vec![RankChange { number, rank, ops }],
            bases,
            ..Changes::default()
        };
        self.store.save(&changes).unwrap();
    }

    /// Writes a base of what a rank has now.
    fn base(&self, number: u64) -> (RankNumber, Base) {
        let number = RankNumber(number);
        let rank = self.ranks[&number].clone();
        let snapshot = self.index.snapshot(&rank.target).unwrap();
        let base = Base {
            generation: self.store.next_generation(number),
            rank,
            first_frame: self.store.next_frame(),
            bytes: 0,
        };
        let base = write_base(&self.path(), number, base, &snapshot).unwrap();
        (number, base)
    }

    /// Closes the store and opens it again, and expects what was applied.
    fn reopen(self) -> Self {
        let path = self.path();
        let Self {
            folder,
            store,
            index,
            ranks,
        } = self;
        let (next_frame, files) = (store.next_frame(), files::all(&path).unwrap().len());
        drop(store);
        let mut again = PrefixIndex::new(0);
        let (store, loaded) = opened(&path, &mut again);
        let summaries = |index: &PrefixIndex| index.ranks().collect::<Vec<RankSummary>>();
        assert_eq!(summaries(&again), summaries(&index));
        assert_eq!(loaded.ranks, ranks);
        assert_eq!(store.next_frame(), next_frame);
        assert_eq!(files::all(&path).unwrap().len(), files);
        Self {
            folder,
            store,
            index,
            ranks,
        }
    }
}

fn open(path: &Path) -> (Store, Loaded) {
    opened(path, &mut PrefixIndex::new(0))
}

fn opened(path: &Path, index: &mut PrefixIndex) -> (Store, Loaded) {
    when_free(|| Store::open(path, 8, index)).unwrap()
}

/// sled lets go of its lock a little after its handle is dropped.
fn when_free<T>(mut open: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 0..400 {
        match open() {
            Err(StoreError::InUse) => std::thread::park_timeout(Duration::from_millis(25)),
            other => return other,
        }
    }
    panic!("the store stays in use");
}

#[test]
fn what_was_saved_comes_back_as_it_was_applied_whenever_bases_are_written() {
    let mut rig = Rig::new();
    let mut announcing: Vec<Announcing> = (0..3)
        .map(|rank| Announcing {
            held: Vec::new(),
            next: rank * 1_000_000,
            capacity: 3000,
        })
        .collect();
    for round in 0..8 {
        for step in 0..40 {
            let number = step % 3;
            let mut ops = announcing[number as usize].step(1 + step * 7);
            if round == 4 && step == 20 {
                announcing[number as usize].held.clear();
                ops.push(KvOp::Cleared);
            }
            // A base that is committed with what came after it, now and then for a rank of its own.
            let base = (step % 9 == 4).then(|| rig.base((round + step) % 3));
            let bases = base
                .filter(|_| round != 0 || 20 < step)
                .into_iter()
                .collect();
            rig.save(number, ops, bases);
        }
        rig = rig.reopen();
    }
}

#[test]
fn journal_and_bases_stay_in_proportion() {
    let mut rig = Rig::new();
    let mut announcing = Announcing {
        held: Vec::new(),
        next: 0,
        capacity: 80_000,
    };
    let mut bases = Vec::new();
    for _ in 0..60 {
        rig.save(0, announcing.step(5000), std::mem::take(&mut bases));
        if let Some(number) = rig.store.due() {
            bases.push(rig.base(number.0));
        }
    }

    let files = files::all(&rig.path()).unwrap();
    let bytes: u64 = files.iter().map(|it| it.metadata().unwrap().len()).sum();
    let held = 80_000 * 16;
    assert!(bytes <= 3 * held, "{bytes} for {held}");
    rig.reopen();
}

#[test]
fn a_rank_that_went_does_not_come_back_with_another_of_its_name() {
    let mut rig = Rig::new();
    let mut announcing = Announcing {
        held: Vec::new(),
        next: 0,
        capacity: 3000,
    };
    rig.save(7, announcing.step(100), Vec::new());
    let target = rig.ranks[&RankNumber(7)].target.clone();
    rig.index.forget(&target);
    rig.ranks.clear();
    let gone = Changes {
        gone: vec![RankNumber(7)],
        ..Changes::default()
    };
    rig.store.save(&gone).unwrap();
    let mut rig = rig.reopen();

    // Under another number.
    let ops = announcing.step(5);
    for op in &ops {
        rig.index.apply(&target, op).unwrap();
    }
    let rank = StoredRank {
        target,
        cursor: None,
        awaiting: None,
        claims: Claims::Complete,
    };
    rig.ranks.insert(RankNumber(8), rank.clone());
    let number = RankNumber(8);
    let change = RankChange { number, rank, ops };
    let new = Changes {
        ranks: vec![change],
        ..Changes::default()
    };
    rig.store.save(&new).unwrap();
    let base = rig.base(8);
    let based = Changes {
        bases: vec![base],
        ..Changes::default()
    };
    rig.store.save(&based).unwrap();
    rig.reopen();
}

#[test]
fn a_store_begun_anew_counts_once_it_is_complete() {
    let mut rig = Rig::new();
    let mut announcing = Announcing {
        held: Vec::new(),
        next: 0,
        capacity: 3000,
    };
    rig.save(0, announcing.step(100), Vec::new());
    let path = rig.path();
    let rank = rig.ranks[&RankNumber(0)].clone();

    // Not whole: the one before it counts.
    let mut store = begin_anew(&path, 8, false).unwrap();
    let change = |ops| RankChange {
        number: RankNumber(3),
        rank: rank.clone(),
        ops,
    };
    let begun = Changes {
        ranks: vec![change(announcing.step(1))],
        ..Changes::default()
    };
    store.save(&begun).unwrap();
    drop(store);
    let rig = rig.reopen();

    // Whole.
    let mut store = begin_anew(&path, 8, false).unwrap();
    let whole = Changes {
        complete: true,
        ..begun
    };
    store.save(&whole).unwrap();
    drop((store, rig.store));
    let (_, loaded) = open(&path);
    assert_eq!(
        loaded.ranks.keys().copied().collect::<Vec<_>>(),
        [RankNumber(3)]
    );
    assert!(!rig.folder.path().join("index.old").exists());
}

#[test]
fn a_store_of_another_format_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let check = |expected: &str| {
        let refused = Store::open(&path, 8, &mut PrefixIndex::new(0));
        assert_eq!(refused.err().unwrap().to_string(), expected);
    };
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("format"), "3\n").unwrap();
    check("the index store has format `3`, and this version reads format 2");
    std::fs::write(path.join("format"), [0xff, b'\n']).unwrap();
    check("the index store has format `\u{fffd}`, and this version reads format 2");
    std::fs::write(path.join("db"), "").unwrap();
    check("the index store has format 1, and this version reads format 2");
}

#[test]
fn any_flipped_bit_and_any_lost_tail_is_found() {
    let mut rig = Rig::new();
    let mut announcing = Announcing {
        held: Vec::new(),
        next: 0,
        capacity: 40,
    };
    rig.save(0, announcing.step(30), Vec::new());
    let base = rig.base(0);
    rig.save(0, announcing.step(30), vec![base]);
    let path = rig.path();
    drop(rig.store);
    let mut damages = 0;
    for file in files::all(&path).unwrap() {
        let whole = std::fs::read(&file).unwrap();
        for at in (0..whole.len()).step_by(whole.len() / 20) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            for damaged in [&flipped[..], &whole[..at]] {
                std::fs::write(&file, damaged).unwrap();
                let name = file.file_name().unwrap().to_str().unwrap();
                let refused = when_free(|| Store::open(&path, 8, &mut PrefixIndex::new(0)));
                let found = refused.err().unwrap().to_string();
                assert!(found.contains(name), "{found}");
                damages += 1;
            }
        }
        std::fs::write(&file, whole).unwrap();
    }
    assert!(40 < damages);
    let mut again = PrefixIndex::new(0);
    opened(&path, &mut again);
    assert_eq!(
        again.ranks().collect::<Vec<_>>(),
        rig.index.ranks().collect::<Vec<_>>()
    );
}
