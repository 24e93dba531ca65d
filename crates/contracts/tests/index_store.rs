//! What an indexer keeps survives its stored form.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use bus::{Generation, Offset};
use contracts::Encoding;
use contracts::index_store::{
    Base, Chunk, Commit, Fence, Frame, LogCursor, LogCursors, Segment, StoredRank,
};
use domain::{
    BlockHash, BlockSize, EngineHash, Epoch, EventSeq, KvOp, Namespace, Target, Tier, WorkerId,
};
use prefix_index::{Claims, Copies, HeldBlock};

fn check<T: Encoding + PartialEq + std::fmt::Debug>(value: &T) {
    let back = T::from_bytes(&value.to_bytes()).expect("its own bytes");
    assert_eq!(back, *value);
}

fn cursors() -> LogCursors {
    LogCursors(vec![LogCursor {
        partition: 15,
        generation: Generation(u64::MAX),
        offset: Offset(7),
    }])
}

#[test]
fn every_stored_thing_survives() {
    check(&cursors());
    check(&Commit {
        cursors: cursors(),
        first_part: 1,
        last_part: 3,
        bytes: u64::MAX,
        first_frame: 0,
        next_frame: 9,
        bases: 2,
        gone: vec![0, 5],
    });
    check(&Fence {
        worker: WorkerId::new("w1").unwrap(),
        epoch: Epoch::new(3),
    });
    for (cursor, claims) in [
        (None, Claims::Complete),
        (Some(EventSeq::new(0)), Claims::Partial { announced: 0 }),
    ] {
        let rank = StoredRank {
            target: "w1#3/0".parse::<Target>().unwrap(),
            cursor,
            awaiting: cursor,
            claims,
        };
        check(&rank);
        check(&Base {
            generation: 2,
            rank: rank.clone(),
            first_frame: 9,
            bytes: 0,
        });
        check(&Frame {
            number: 3,
            segments: vec![Segment {
                number: 7,
                rank,
                ops: vec![
                    KvOp::Cleared,
                    KvOp::Removed {
                        group: 1,
                        engine_hashes: vec![EngineHash::Int(0)],
                        tier: Tier::Disk,
                    },
                ],
            }],
        });
    }
}

fn held(parent: Option<u32>, engine_hash: EngineHash) -> HeldBlock {
    HeldBlock {
        namespace: 0,
        parent,
        block_hash: BlockHash::new(u64::MAX),
        group: 1,
        engine_hash,
        copies: Copies {
            gpu: 1,
            host: 0,
            disk: u32::MAX,
        },
    }
}

fn chunk(blocks: Vec<HeldBlock>) -> Chunk {
    Chunk {
        first: 100,
        namespaces: vec![Namespace {
            model: "m".parse().unwrap(),
            lora: None,
            salt: Some("s".into()),
            block_size: BlockSize::new(16).unwrap(),
        }],
        blocks,
    }
}

#[test]
fn a_part_of_a_base_survives_with_engine_hashes_of_both_kinds() {
    let digest = || EngineHash::Bytes([1_u8; 32].as_slice().into());
    check(&chunk(Vec::new()));
    check(&chunk(vec![
        held(Some(99), EngineHash::Int(0)),
        held(Some(100), digest()),
        held(Some(101), EngineHash::Int(7)),
        held(Some(102), EngineHash::Int(8)),
        held(Some(0), EngineHash::Int(9)),
        held(None, EngineHash::Int(10)),
        HeldBlock {
            copies: Copies::default(),
            ..held(Some(105), EngineHash::Int(9))
        },
    ]));
}

#[test]
fn a_part_of_a_base_takes_little_more_than_its_hashes() {
    let blocks = 1000_u32;
    let chain = (100..100 + blocks).map(|it| held(Some(it - 1), EngineHash::Int(it.into())));

    let bytes = chunk(chain.collect()).to_bytes().len() as u32;

    assert!(bytes <= 16 * blocks + 64, "{bytes}");
}

#[test]
fn a_part_of_a_base_that_contradicts_itself_is_an_error() {
    let whole = chunk(vec![held(None, EngineHash::Int(6)); 3]).to_bytes();
    let mut refused = 0;
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.to_vec();
            damaged[at] ^= 1 << bit;
            // Or it has another valid meaning.
            refused += u32::from(Chunk::from_bytes(&damaged).is_err());
        }
    }
    assert!(0 < refused);
}
