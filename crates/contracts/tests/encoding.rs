//! Every record survives its wire form, and no bytes can make decoding panic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Debug;
use std::sync::Arc;

use affinity::{Binding, BindingState, ConversationKey, Evidence, MoveReason, Owner};
use contracts::{Encoding, FleetEntry, LoadReport, ReservationBatch, ReservationChange};
use domain::{
    BlockHash, BlockSize, ByEndpoint, Capability, DecisionId, Distrust, DpRank, Drain, Endpoint,
    EngineHash, EngineKind, Epoch, EventSeq, FirstRank, HeaderSpace, Incarnation, KvBatch,
    KvEndpoints, KvOp, Namespace, RankControl, RankEndpoint, RankLoad, ResetReason, SequenceHash,
    ServiceInstance, ServiceKind, SessionTag, StoredBlock, StoredBlocks, Target, TargetState, Tier,
    Timestamp, Tokens, Worker,
};
use proptest::prelude::*;

fn target() -> Target {
    "w1#3/0".parse().unwrap()
}

fn stored(engine_hash: EngineHash, parent: Option<EngineHash>) -> KvOp {
    KvOp::Stored(StoredBlocks {
        group: 1,
        parent,
        blocks: vec![StoredBlock {
            engine_hash,
            block_hash: BlockHash::new(u64::MAX),
        }],
        tier: Tier::Host,
        namespace: Namespace {
            model: "m".parse().unwrap(),
            lora: Some(Arc::from("l")),
            salt: None,
            block_size: BlockSize::new(16).unwrap(),
        },
        session: Some(SessionTag(0)),
    })
}

fn batch() -> KvBatch {
    let digest = EngineHash::Bytes(Arc::from([7_u8; 32].as_slice()));
    KvBatch {
        target: target(),
        seq: EventSeq::new(u64::MAX),
        part: 1,
        parts: 2,
        engine_ts: Timestamp::from_micros(5),
        ops: vec![
            stored(EngineHash::Int(u64::MAX), None),
            stored(digest.clone(), Some(EngineHash::Int(0))),
            KvOp::Retiered {
                group: 0,
                engine_hashes: vec![EngineHash::Int(0), EngineHash::Int(1)],
                from: Tier::Gpu,
                to: Tier::Disk,
            },
            KvOp::Removed {
                group: 0,
                engine_hashes: vec![digest],
                tier: Tier::Gpu,
            },
            KvOp::Cleared,
            KvOp::Reset {
                reason: ResetReason::AttachedLate,
            },
        ],
    }
}

fn worker() -> Worker {
    Worker {
        id: "w1".parse().unwrap(),
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: "0.33.0".to_owned(),
        model: "m".parse().unwrap(),
        start_rank: 4,
        dp_size: 4,
        block_size: BlockSize::new(16).unwrap(),
        page_size: BlockSize::new(16).unwrap(),
        kv_blocks: Some(10),
        capability: Capability {
            rank_control: ByEndpoint::of(|endpoint| match endpoint {
                Endpoint::Responses => RankControl::None,
                Endpoint::Messages => RankControl::FirstTurn,
                _ => RankControl::Strict,
            }),
            header_space: HeaderSpace::Local,
            rank_report: ByEndpoint::of(|endpoint| endpoint == Endpoint::Chat),
            owns_bindings: true,
            first_rank: FirstRank::ProvedKept,
        },
        state: TargetState::Draining,
        url: "http://10.0.0.1:8000".to_owned(),
        kv_endpoints: KvEndpoints::Zmq(vec![RankEndpoint {
            dp_rank: DpRank::new(4),
            publish: "tcp://10.0.0.1:5557".to_owned(),
            replay: None,
            topic: String::new(),
        }]),
        lease_until: Timestamp::from_micros(1),
    }
}

fn binding(state: BindingState, moved: Option<MoveReason>) -> Binding {
    Binding {
        key: ConversationKey {
            tenant: "t".parse().unwrap(),
            model: "m".parse().unwrap(),
            conversation: "c".parse().unwrap(),
        },
        target: target(),
        owner: Owner::Router,
        state,
        evidence: Evidence::Event,
        moved,
        since: Timestamp::from_micros(8),
        actor: "r1".parse().unwrap(),
        held: Tokens::new(64),
        turns: 2,
        last_end: Timestamp::from_micros(9),
    }
}

fn reservations() -> ReservationBatch {
    ReservationBatch {
        router: "r1".parse().unwrap(),
        at: Timestamp::from_micros(3),
        changes: vec![
            ReservationChange::Reserve {
                id: DecisionId::new(u128::MAX - 1),
                target: target(),
                uncached: Tokens::new(100),
                landmarks: vec![SequenceHash::new(1), SequenceHash::new(2)],
                lease_until: Timestamp::from_micros(4),
                conversation: Some(5),
            },
            ReservationChange::Release {
                id: DecisionId::new(0),
            },
        ],
    }
}

fn survives<T: Encoding + Debug + PartialEq>(value: &T) {
    let bytes = value.to_bytes();
    assert_eq!(T::from_bytes(&bytes).as_ref().ok(), Some(value));

    let mut with_unknown_field = bytes.to_vec();
    // Field 1000, varint 7: from a later minor version.
    with_unknown_field.extend([0xc0, 0x3e, 0x07]);
    assert_eq!(
        T::from_bytes(&with_unknown_field).as_ref().ok(),
        Some(value)
    );
}

#[test]
fn every_record_survives_its_wire_form() {
    survives(&batch());
    survives(&FleetEntry::Worker(worker()));
    survives(&FleetEntry::Worker(Worker {
        kv_endpoints: KvEndpoints::None,
        kv_blocks: None,
        ..worker()
    }));
    survives(&FleetEntry::Worker(Worker {
        kv_endpoints: KvEndpoints::Drained("http://10.0.0.1:8000/kv_cache_events".to_owned()),
        ..worker()
    }));
    let shares = [
        domain::Share::Whole,
        domain::Share::Shard { index: 1, of: 2 },
        domain::Share::Workers(["w1", "w2"].map(|it| it.parse().unwrap()).into()),
    ];
    for share in shares {
        survives(&FleetEntry::Service(ServiceInstance {
            id: "i1".parse().unwrap(),
            kind: ServiceKind::Indexer,
            address: String::new(),
            share,
            ready: true,
            distrust: vec![Distrust {
                worker: "w1".parse().unwrap(),
                epoch: Epoch::new(2),
                endpoint: Endpoint::Embeddings,
            }],
            secret: Some(domain::Fingerprint::new(9)),
            lease_until: Timestamp::from_micros(8),
        }));
    }
    for dp_rank in [None, Some(DpRank::new(0))] {
        survives(&Drain {
            worker: "w1".parse().unwrap(),
            dp_rank,
            moves: dp_rank.is_some(),
            actor: "operator".parse().unwrap(),
            since: Timestamp::from_micros(7),
        });
    }
    survives(&Incarnation {
        epoch: Epoch::new(4),
        why: "the sequence began anew".to_owned(),
        since: Timestamp::from_micros(2),
    });
    survives(&binding(BindingState::Confirmed, None));
    let lease_until = Timestamp::ZERO;
    let provisional = BindingState::Provisional { lease_until };
    survives(&binding(provisional, Some(MoveReason::PrefixLost)));
    survives(&reservations());
    survives(&LoadReport {
        worker: "w1".parse().unwrap(),
        ranks: vec![RankLoad {
            dp_rank: DpRank::new(1),
            running: 2,
            waiting: 3,
            kv_used: 0.5,
            at: Timestamp::from_micros(6),
        }],
    });
}

#[test]
fn an_unset_enum_is_an_error_that_names_the_field() {
    let bytes = FleetEntry::Worker(worker()).to_bytes().to_vec();
    // `TargetState` is field 11 of the worker: tag 0x58, value 5 (draining).
    let at = bytes.windows(2).position(|it| it == [0x58, 0x05]).unwrap();
    let mut unset = bytes.clone();
    unset[at + 1] = 0;
    let mut unknown = bytes;
    unknown[at + 1] = 99;

    let error = FleetEntry::from_bytes(&unset).unwrap_err().to_string();
    assert_eq!(error, "decode worker: field state is unspecified");
    let error = FleetEntry::from_bytes(&unknown).unwrap_err().to_string();
    assert_eq!(error, "decode worker: field state has the unknown value 99");
}

#[test]
fn a_worker_with_more_ranks_than_any_has_is_refused() {
    for (start_rank, dp_size) in [(0, 4_097), (0, u32::MAX), (u32::MAX, 1)] {
        let worker = Worker {
            start_rank,
            dp_size,
            ..worker()
        };
        let bytes = FleetEntry::Worker(worker).to_bytes();
        let error = FleetEntry::from_bytes(&bytes).unwrap_err().to_string();
        assert_eq!(
            error,
            "decode worker: field dp_size is more than 4096, or reaches beyond the last rank there is"
        );
    }
}

#[test]
fn events_come_from_one_kind_of_source() {
    let both = |drained: &str| {
        // `drained` is field 16 of the worker, field 1 of the entry; a message that comes twice is merged.
        let field = [&[0x82, 0x01, drained.len() as u8], drained.as_bytes()].concat();
        let more = [&[0x0a, field.len() as u8], field.as_slice()].concat();
        let bytes = FleetEntry::Worker(worker()).to_bytes();
        FleetEntry::from_bytes(&[bytes.as_ref(), more.as_slice()].concat())
    };
    for drained in ["http://a:1/kv_cache_events", ""] {
        let error = both(drained).unwrap_err().to_string();
        assert_eq!(
            error,
            "decode worker: field drained is empty, or stands beside publishers"
        );
    }
}

#[test]
fn of_a_part_beyond_its_batch_nothing_is_taken() {
    let bytes = KvBatch { part: 2, ..batch() }.to_bytes();

    assert!(KvBatch::from_bytes(&bytes).is_err());
}

#[test]
fn a_binding_without_its_beginning_began_no_later_than_its_last_turn_ended() {
    let mut expected = binding(BindingState::Confirmed, None);
    expected.since = Timestamp::ZERO;
    let without = expected.to_bytes();
    expected.since = expected.last_end;
    assert_eq!(Binding::from_bytes(&without).unwrap(), expected);
}

fn decode_all(bytes: &[u8]) {
    let _ = KvBatch::from_bytes(bytes);
    let _ = FleetEntry::from_bytes(bytes);
    let _ = Incarnation::from_bytes(bytes);
    let _ = Binding::from_bytes(bytes);
    let _ = ReservationBatch::from_bytes(bytes);
    let _ = LoadReport::from_bytes(bytes);
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        decode_all(&bytes);
    }

    #[test]
    fn no_damage_makes_decoding_panic(position in any::<prop::sample::Index>(), bit in 0..8_u8) {
        for valid in [batch().to_bytes(), FleetEntry::Worker(worker()).to_bytes()] {
            let mut damaged = valid.to_vec();
            let at = position.index(damaged.len());
            damaged[at] ^= 1 << bit;
            decode_all(&damaged);
        }
    }
}
