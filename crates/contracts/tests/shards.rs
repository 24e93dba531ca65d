//! Answers of shards, merged, are those of one index over the same events.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use contracts::rpc::{OverlapAnswer, Shard};
use contracts::topics::kv_events_of;
use domain::{
    BlockHash, BlockSize, EngineHash, KvOp, Namespace, SequenceHash, StoredBlock, StoredBlocks,
    Target, TargetState, Tier, sequence_hashes,
};
use prefix_index::PrefixIndex;
use proptest::collection::vec;
use proptest::prelude::*;

/// A rank, a path, how much of it is removed again from its end, and where it is stored.
type Told = (u32, Vec<u64>, usize, bool);

fn namespace() -> Namespace {
    Namespace {
        model: "m".parse().unwrap(),
        lora: None,
        salt: None,
        block_size: BlockSize::new(16).unwrap(),
    }
}

fn hashes(path: &[u64]) -> Vec<SequenceHash> {
    let blocks: Vec<BlockHash> = path.iter().copied().map(BlockHash::new).collect();
    sequence_hashes(&blocks)
}

fn target(rank: u32) -> Target {
    format!("w{}#1/{}", rank % 5, rank / 5).parse().unwrap()
}

fn ops((_, path, removed, on_gpu): &Told) -> [KvOp; 2] {
    let names: Vec<EngineHash> = hashes(path)
        .iter()
        .map(|it| EngineHash::Int(it.get()))
        .collect();
    let tier = if *on_gpu { Tier::Gpu } else { Tier::Host };
    let blocks = path.iter().zip(&names).map(|(block, name)| StoredBlock {
        engine_hash: name.clone(),
        block_hash: BlockHash::new(*block),
    });
    let stored = KvOp::Stored(StoredBlocks {
        group: 0,
        parent: None,
        blocks: blocks.collect(),
        tier,
        namespace: namespace(),
        session: None,
    });
    let removed = KvOp::Removed {
        group: 0,
        engine_hashes: names.into_iter().rev().take(*removed).collect(),
        tier,
    };
    [stored, removed]
}

/// What an index that follows `shard` answers.
fn answer(told: &[Told], shard: Shard, path: &[u64], not_ready: u32) -> OverlapAnswer {
    let mut index = PrefixIndex::new(10_000);
    let follows = |rank: u32| {
        let target = target(rank);
        shard.follows(kv_events_of(&target.worker, target.dp_rank).index)
    };
    for one in told.iter().filter(|it| follows(it.0)) {
        for op in ops(one) {
            index.apply(&target(one.0), &op).unwrap();
        }
    }
    let overlap = index.overlap(&namespace(), &hashes(path)[..]);
    let not_ready = follows(not_ready).then(|| (target(not_ready), TargetState::Suspect));
    OverlapAnswer {
        groups: overlap.groups,
        ceiling: overlap.stored,
        stored: overlap.stored,
        not_ready: not_ready.into_iter().collect(),
        unknown: shard.unknown(),
        index_age: Duration::from_millis(7),
    }
}

fn told() -> impl Strategy<Value = Vec<Told>> {
    vec(
        (0_u32..20, vec(0_u64..3, 1..6), 0_usize..4, any::<bool>()),
        0..40,
    )
}

proptest! {
    #[test]
    fn shards_merged_answer_as_one_index(
        told in told(), path in vec(0_u64..3, 0..6), of in 1_u32..=16, not_ready in 0_u32..20,
    ) {
        let answers = (0..of).map(|index| {
            answer(&told, Shard::new(index, of).unwrap(), &path, not_ready)
        });
        let merged = OverlapAnswer::merge(answers).unwrap();

        prop_assert_eq!(merged, answer(&told, Shard::WHOLE, &path, not_ready));
    }

    #[test]
    fn a_missing_shard_leaves_its_targets_unknown_and_the_rest_as_it_is(
        told in told(), path in vec(0_u64..3, 1..6), of in 2_u32..=16, missing in 0_u32..16,
    ) {
        let missing = missing % of;
        let others = (0..of).filter(|index| *index != missing);
        let answers = others.map(|index| answer(&told, Shard::new(index, of).unwrap(), &path, 0));
        let merged = OverlapAnswer::merge(answers).unwrap();

        let whole = answer(&told, Shard::WHOLE, &path, 0);
        for rank in 0..20 {
            let target = target(rank);
            let partition = kv_events_of(&target.worker, target.dp_rank).index;
            prop_assert_eq!(merged.unknown.contains(&target), partition % of == missing);
            let held = |answer: &OverlapAnswer| {
                let group = answer.groups.iter().find(|it| it.targets.contains(&target));
                group.map(|it| it.depths)
            };
            let expected = held(&whole).filter(|_| !merged.unknown.contains(&target));
            prop_assert_eq!(held(&merged), expected);
        }
    }
}
