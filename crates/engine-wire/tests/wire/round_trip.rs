//! What the encoder writes is what vLLM 0.33 writes, and the decoder reads it back.

use std::sync::Arc;
use std::time::Duration;

use domain::{DpRank, EngineHash, Tier, Timestamp};
use engine_wire::vllm::BatchEncoder;
use engine_wire::{
    Event, EventBatch, Lora, Medium, Removed, SpecKind, Stored, decode_batch, decode_frames,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::corpus::captured;

fn encode(batch: &EventBatch) -> Vec<u8> {
    let mut encoder = BatchEncoder::new();
    for event in &batch.events {
        match event {
            Event::Stored(stored) => encoder.stored(stored),
            Event::Removed(removed) => encoder.removed(removed),
            Event::Cleared => encoder.cleared(),
            other => panic!("vLLM does not announce {other:?}"),
        }
    }
    encoder.finish(batch.ts, batch.dp_rank.unwrap())
}

/// Where the events begin: behind the array's head and the time.
const BEHIND_TIME: usize = 10;

#[test]
fn what_vllm_0_33_sent_is_encoded_byte_for_byte() {
    // All that has no field that is not kept: a number beside an adapter's name, a tier's owner, a window,
    // look-ahead, identifiers of images; and extra keys, which older ways of storing leave out.
    let kept = [
        "stored_root_int",
        "_removed",
        "_cleared",
        "explicit_rank5",
        "empty_batch",
    ];
    let mut equal = 0;
    for message in captured() {
        let of_kind = kept.iter().any(|scenario| message.name.contains(scenario));
        if !message.name.starts_with("vllm/0.33.0/") || !of_kind {
            continue;
        }
        let read = decode_frames(&message.frames).unwrap();
        let batch = decode_batch(read.payload).unwrap();
        assert_eq!(encode(&batch), read.payload, "{}", message.name);
        equal += 1;
    }
    assert_eq!(equal, 8);
}

#[test]
fn what_a_real_vllm_sent_is_encoded_field_for_field() {
    let mut equal = 0;
    for message in captured() {
        if !message.name.starts_with("vllm-real/") {
            continue;
        }
        let read = decode_frames(&message.frames).unwrap();
        let batch = decode_batch(read.payload).unwrap();
        // Version 0.32 writes shorter heads of maps, and times finer than a microsecond.
        let events = |payload: &[u8]| {
            let mut rest = &payload[BEHIND_TIME..];
            rmpv::decode::read_value(&mut rest).unwrap()
        };
        assert_eq!(
            events(&encode(&batch)),
            events(read.payload),
            "{}",
            message.name
        );
        equal += 1;
    }
    assert_eq!(equal, 27);
}

proptest! {
    #[test]
    fn a_batch_survives_the_wire(
        micros in 0_u64..1 << 51,
        rank in any::<u32>(),
        events in vec(event(), 0..6),
    ) {
        let batch = EventBatch {
            ts: Timestamp::from_micros(micros),
            dp_rank: Some(DpRank::new(rank)),
            events,
        };
        let mut read = decode_batch(&encode(&batch)).unwrap();
        // The wire has seconds as a float.
        prop_assert!(batch.ts.since(read.ts) <= Duration::from_micros(1));
        prop_assert!(read.ts <= batch.ts);
        read.ts = batch.ts;
        prop_assert_eq!(read, batch);
    }
}

fn event() -> impl Strategy<Value = Event> {
    let removed = (vec(hash(), 0..5), medium(), option::of(any::<u32>())).prop_map(
        |(block_hashes, medium, group)| {
            Event::Removed(Removed {
                block_hashes,
                medium,
                group,
            })
        },
    );
    prop_oneof![
        stored().prop_map(Event::Stored),
        removed,
        Just(Event::Cleared)
    ]
}

fn stored() -> impl Strategy<Value = Stored> {
    let blocks = (0_usize..5, 0_usize..5, 1_u32..40).prop_flat_map(|(described, opaque, size)| {
        let tokens = vec(any::<u32>(), described * size as usize);
        let hashes = vec(hash(), described + opaque);
        (hashes, tokens, Just(opaque * size as usize), Just(size))
    });
    let names = (option::of(lora()), option::of(text()), option::of(text()));
    let kind = option::of(prop_oneof![
        Just(SpecKind::FullAttention),
        Just(SpecKind::MlaAttention),
        Just(SpecKind::SinkFullAttention),
        Just(SpecKind::Other("sliding_window".into())),
    ]);
    let place = (medium(), option::of(any::<u32>()), kind);
    (blocks, option::of(hash()), names, place).prop_map(
        |((block_hashes, token_ids, opaque_tokens, block_size), parent, names, place)| {
            let (lora, salt, session) = names;
            let (medium, group, spec_kind) = place;
            let has_keys = parent.is_none() && !block_hashes.is_empty();
            Stored {
                block_hashes,
                parent,
                token_ids,
                opaque_tokens,
                block_size,
                medium,
                group,
                spec_kind,
                lora,
                salt: salt.filter(|_| has_keys),
                session,
            }
        },
    )
}

fn hash() -> impl Strategy<Value = EngineHash> {
    prop_oneof![
        any::<u64>().prop_map(EngineHash::Int),
        vec(any::<u8>(), 0..40).prop_map(|bytes| EngineHash::Bytes(bytes.into())),
    ]
}

fn medium() -> impl Strategy<Value = Medium> {
    prop_oneof![
        Just(Medium::Tier(Tier::Gpu)),
        Just(Medium::Tier(Tier::Host)),
        Just(Medium::Tier(Tier::Disk)),
        Just(Medium::Remote),
        Just(Medium::Unknown("FS".into())),
    ]
}

fn lora() -> impl Strategy<Value = Lora> {
    prop_oneof![
        text().prop_map(Lora::Named),
        any::<i64>().prop_map(Lora::Unnamed),
    ]
}

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-zé\"]{1,12}".prop_map(Arc::from)
}
