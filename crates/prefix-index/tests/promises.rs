//! What the model does not show: bounds, many targets, and how long a lookup takes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use domain::{
    BlockHash, BlockSize, DpRank, EngineHash, Epoch, KvOp, ModelName, Namespace, SequenceHash,
    StoredBlock, StoredBlocks, Target, Tier, WorkerId, sequence_hashes,
};
use prefix_index::{Carried, Claims, PrefixIndex};

fn target(rank: u32) -> Target {
    Target {
        worker: WorkerId::new("w").unwrap(),
        epoch: Epoch::FIRST,
        dp_rank: DpRank::new(rank),
    }
}

fn namespace() -> Namespace {
    Namespace {
        model: ModelName::new("m").unwrap(),
        lora: None,
        salt: None,
        block_size: BlockSize::new(16).unwrap(),
    }
}

fn chain(len: u64) -> Vec<BlockHash> {
    (0..len).map(BlockHash::new).collect()
}

fn stored(blocks: &[BlockHash]) -> KvOp {
    let block = |block: &BlockHash| StoredBlock {
        engine_hash: EngineHash::Int(block.get()),
        block_hash: *block,
    };
    KvOp::Stored(StoredBlocks {
        group: 0,
        parent: None,
        blocks: blocks.iter().map(block).collect(),
        tier: Tier::Gpu,
        namespace: namespace(),
        session: None,
    })
}

#[test]
fn targets_beyond_the_first_word_are_answered_like_any_other() {
    let mut index = PrefixIndex::new(10);
    let blocks = chain(200);
    for rank in 0..150 {
        let depth = 1 + rank as usize;
        index
            .apply(&target(rank), &stored(&blocks[..depth]))
            .unwrap();
    }

    let overlap = index.overlap(&namespace(), &sequence_hashes(&blocks));

    assert_eq!(overlap.groups.len(), 150);
    for (group, rank) in overlap.groups.iter().zip((0..150).rev()) {
        assert_eq!(group.targets, [target(rank)]);
        assert_eq!(group.depths.gpu, 1 + rank);
    }
    assert_eq!(overlap.stored, 150);
}

#[test]
fn an_older_incarnation_is_gone_at_once_and_refused_later() {
    let mut index = PrefixIndex::new(10);
    let blocks = chain(4);
    let old = target(0);
    let new = Target {
        epoch: Epoch::new(2),
        ..target(0)
    };
    index.apply(&old, &stored(&blocks)).unwrap();
    index.apply(&new, &stored(&blocks[..1])).unwrap();

    let fenced = index.fence(&old.worker, new.epoch);
    assert_eq!(fenced, std::slice::from_ref(&old));
    index.fence(&old.worker, old.epoch);

    let overlap = index.overlap(&namespace(), &sequence_hashes(&blocks));
    assert_eq!(overlap.groups.len(), 1);
    assert_eq!(overlap.groups[0].targets, [new]);
    assert_eq!(overlap.stored, 4);
    assert!(index.apply(&old, &stored(&blocks)).is_err());
    assert!(index.rank(&old).is_none());
}

#[test]
fn a_stored_block_without_its_parent_leaves_the_claims_partial() {
    let mut index = PrefixIndex::new(10);
    let KvOp::Stored(mut orphan) = stored(&chain(3)) else {
        unreachable!()
    };
    orphan.parent = Some(EngineHash::Int(99));

    let applied = index.apply(&target(0), &KvOp::Stored(orphan)).unwrap();

    assert_eq!((applied.orphans, applied.stored), (3, 0));
    let rank = index.rank(&target(0)).unwrap();
    assert_eq!(rank.blocks, 0);
    assert_eq!(rank.claims, Claims::Partial { announced: 0 });
}

#[test]
fn what_is_remembered_of_requests_is_bounded_and_the_latest_and_shallowest_stay() {
    let mut carried = Carried::new(100);
    let request = |number: u64| {
        let blocks: Vec<BlockHash> = (0..30)
            .map(|it| BlockHash::new(number * 100 + it))
            .collect();
        sequence_hashes(&blocks)
    };
    for number in 0..50 {
        carried.record(&namespace(), &request(number));
    }
    let long: Vec<SequenceHash> = sequence_hashes(&chain(10_000));

    assert_eq!(carried.depth(&namespace(), &request(49)), 30);
    assert_eq!(carried.depth(&namespace(), &request(0)), 0);
    assert!(1300 < carried.forgotten());
    carried.record(&namespace(), &long);
    let depth = carried.depth(&namespace(), &long);
    assert!((50..=100).contains(&depth), "{depth}");
}

#[test]
fn what_is_carried_again_stays_remembered_and_is_gone_on_with() {
    let mut carried = Carried::new(4_000);
    let long: Vec<SequenceHash> = sequence_hashes(&chain(1_000));
    for turn in 0..100 {
        let own: Vec<_> = (0..50)
            .map(|it| BlockHash::new(1 << 40 | turn << 20 | it))
            .collect();
        let others = sequence_hashes(&own);
        carried.record(&namespace(), &others);
        carried.record(&namespace(), &long[..900]);
        assert_eq!(carried.depth(&namespace(), &long), 900);
    }

    let parted = [&long[..700], &sequence_hashes(&chain(3))[2..]].concat();
    let depth = carried.depth(&namespace(), &parted);
    assert!((640..=700).contains(&depth), "{depth}");
    assert!(0 < carried.forgotten());
}

/// 512 blocks against 64 targets. Prints the time a lookup; the bound is loose, for debug builds and busy
/// machines.
#[test]
fn a_lookup_of_many_blocks_and_targets_is_no_matter_of_milliseconds() {
    let mut index = PrefixIndex::new(10);
    let blocks = chain(512);
    for rank in 0..64 {
        let depth = if rank % 2 == 0 {
            512
        } else {
            8 * rank as usize
        };
        index
            .apply(&target(rank), &stored(&blocks[..depth]))
            .unwrap();
    }
    let hashes = sequence_hashes(&blocks);
    #[expect(clippy::disallowed_types, reason = "this measures real time")]
    let start = std::time::Instant::now();
    for _ in 0..1000 {
        std::hint::black_box(index.overlap(&namespace(), std::hint::black_box(&hashes)));
    }
    let micros = start.elapsed().as_micros() / 1000;
    eprintln!("{micros} us a lookup");
    assert!(micros < 5_000);
}

/// Engines that name equal content by hashes of their own, and begin with content that nobody has: they share
/// names at first, and most do not fit.
#[test]
fn targets_that_name_blocks_in_their_own_way_keep_no_names_one_by_one() {
    let mut index = PrefixIndex::new(1000);
    let shared = chain(1000);
    let chain = sequence_hashes(&shared);
    let stored = |rank: u32, blocks: &[BlockHash]| {
        let sequences = sequence_hashes(blocks);
        let block = |(block, sequence): (&BlockHash, &SequenceHash)| StoredBlock {
            engine_hash: EngineHash::Int(sequence.get() ^ u64::from(rank + 1) << 32),
            block_hash: *block,
        };
        KvOp::Stored(StoredBlocks {
            group: 0,
            parent: None,
            blocks: blocks.iter().zip(&sequences).map(block).collect(),
            tier: Tier::Gpu,
            namespace: namespace(),
            session: None,
        })
    };
    let reader = index.reader();
    for rank in 0..4 {
        let own = BlockHash::new(u64::from(rank) + 5000);
        index.apply(&target(rank), &stored(rank, &[own])).unwrap();
        let applied = index.apply(&target(rank), &stored(rank, &shared)).unwrap();
        assert_eq!(applied.stored, 1000);
        assert_eq!(
            reader.overlap(&namespace(), &chain).groups[0].targets.len(),
            rank as usize + 1
        );
    }
    assert_eq!(index.memory().odd_names, 0);
    while index.sweep(1000) {}
    for rank in 0..4 {
        let names = chain
            .iter()
            .rev()
            .map(|it| EngineHash::Int(it.get() ^ u64::from(rank + 1) << 32));
        let removed = KvOp::Removed {
            group: 0,
            engine_hashes: names.collect(),
            tier: Tier::Gpu,
        };
        let applied = index.apply(&target(rank), &removed).unwrap();
        assert_eq!((applied.removed, applied.unknown), (1000, 0));
        assert_eq!(index.blocks(&target(rank)), Some(1));
    }
}

#[test]
fn what_is_evicted_stays_where_it_was_within_a_bound_and_is_joined_when_it_comes_back() {
    let mut index = PrefixIndex::new(1000);
    let content = |number: u64| -> Vec<BlockHash> {
        (1..=100)
            .map(|it| BlockHash::new(1000 * number + it))
            .collect()
    };
    let evict = |number: u64| {
        let names = content(number).into_iter().rev();
        KvOp::Removed {
            group: 0,
            engine_hashes: names.map(|it| EngineHash::Int(it.get())).collect(),
            tier: Tier::Gpu,
        }
    };
    for number in 0..100 {
        // The first one comes back again and again.
        for number in [0, number] {
            let applied = index.apply(&target(0), &stored(&content(number))).unwrap();
            assert_eq!((applied.stored, applied.duplicates), (100, 0));
            let applied = index.apply(&target(0), &evict(number)).unwrap();
            assert_eq!((applied.removed, applied.unknown), (100, 0));
            assert!(index.memory().ghosts <= 250);
        }
        let size = index.size();
        assert_eq!((size.blocks, size.namespaces), (0, 0));
    }

    assert_eq!(index.memory().ghosts, 200);
    let remembered = |number| {
        let hashes = sequence_hashes(&content(number));
        let overlap = index.overlap(&namespace(), &hashes);
        assert_eq!(overlap.groups, []);
        overlap.stored
    };
    for number in [0, 99, 98, 97] {
        assert_eq!(remembered(number), 100);
    }
    let forgotten = (1..100).filter(|it| remembered(*it) < 100).count();
    assert!((70..99).contains(&forgotten), "{forgotten}");
    assert!(7000 < index.forgotten());
    index.reclaim(0);
    assert_eq!((index.memory().ghosts, index.memory().names), (0, 0));
}
