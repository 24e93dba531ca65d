//! What an indexer keeps survives its stored form.

use bus::{Generation, Offset};
use contracts::Encoding;
use contracts::index_store::{Base, Fence, LogCursor, LogCursors, Segment, StoredRank};
use domain::{
    BlockSize, EngineHash, Epoch, EventSeq, KvOp, Namespace, SequenceHash, Target, Tier, WorkerId,
};
use prefix_index::{Claims, Copies, HeldBlock, RankSnapshot};

fn check<T: Encoding + PartialEq + std::fmt::Debug>(value: &T) {
    let back = T::from_bytes(&value.to_bytes()).expect("its own bytes");
    assert_eq!(back, *value);
}

#[test]
fn every_stored_thing_survives() {
    check(&LogCursors(vec![LogCursor {
        partition: 15,
        generation: Generation(u64::MAX),
        offset: Offset(7),
    }]));
    check(&Fence {
        worker: WorkerId::new("w1").unwrap(),
        epoch: Epoch::new(3),
    });
    check(&Base {
        generation: 2,
        chunks: 0,
        first_segment: 9,
    });
    check(&Segment {
        number: 3,
        ops: vec![
            KvOp::Cleared,
            KvOp::Removed {
                group: 1,
                engine_hashes: vec![EngineHash::Int(0)],
                tier: Tier::Disk,
            },
        ],
    });
    for (cursor, claims) in [
        (None, Claims::Complete),
        (Some(EventSeq::new(0)), Claims::Partial { announced: 0 }),
    ] {
        check(&StoredRank {
            target: "w1#3/0".parse::<Target>().unwrap(),
            cursor,
            awaiting: cursor,
            claims,
            next_segment: 1,
        });
    }
}

#[test]
fn a_part_of_a_base_survives_with_engine_hashes_of_both_kinds() {
    let held = |engine_hash| HeldBlock {
        namespace: 0,
        group: 1,
        engine_hash,
        sequence: SequenceHash::new(5),
        copies: Copies {
            gpu: 1,
            host: 0,
            disk: u32::MAX,
        },
    };
    check(&RankSnapshot {
        claims: Claims::Complete,
        namespaces: vec![Namespace {
            model: "m".parse().unwrap(),
            lora: None,
            salt: Some("s".into()),
            block_size: BlockSize::new(16).unwrap(),
        }],
        blocks: vec![
            held(EngineHash::Int(0)),
            held(EngineHash::Bytes([1_u8; 32].as_slice().into())),
        ],
    });
}
