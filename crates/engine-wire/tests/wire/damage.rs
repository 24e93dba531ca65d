//! Damaged bytes give an error or a meaning that holds together; they never panic.

use domain::Timestamp;
use engine_wire::{
    Event, EventBatch, decode_batch, decode_frames, decode_replay, decode_replay_request, trtllm,
    vllm,
};
use proptest::prelude::*;

use crate::corpus::{json, payloads, read};

#[test]
fn every_truncation_of_every_payload_is_an_error() {
    for payload in payloads() {
        for length in 0..payload.len() {
            let error = decode_batch(&payload[..length]).unwrap_err();
            assert_eq!(error.label(), "truncated");
        }
    }
}

#[test]
fn every_bit_flip_of_every_payload_is_an_error_or_holds_together() {
    let payloads = payloads();
    assert_eq!(payloads.len(), 142);
    // The long payloads take most of the time: deal them out.
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let mine = payloads.iter().skip(worker).step_by(workers);
            scope.spawn(move || mine.for_each(|payload| flip_every_bit(payload)));
        }
    });
}

fn flip_every_bit(payload: &[u8]) {
    let mut damaged = payload.to_vec();
    for bit in 0..payload.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(batch) = decode_batch(&damaged) {
            holds_together(&batch, damaged.len());
        }
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

/// What any batch promises: nothing it holds is larger than what it was read from, and what can be indexed
/// is whole blocks.
fn holds_together(batch: &EventBatch, bytes: usize) {
    assert!(batch.events.len() <= bytes);
    for event in &batch.events {
        match event {
            Event::Stored(stored) => {
                assert!(stored.token_ids.len() + stored.opaque_tokens <= bytes);
                let Ok(blocks) = stored.full_blocks() else {
                    continue;
                };
                assert!((1..=stored.block_hashes.len()).contains(&blocks.len()));
                let size = stored.block_size as usize;
                for block in blocks {
                    assert_eq!(block.token_ids.len(), size);
                }
            }
            Event::Removed(removed) => assert!(removed.block_hashes.len() <= bytes),
            Event::Unknown { tag } => assert!(tag.len() <= 64),
            Event::Malformed { why } => assert!(!why.to_string().is_empty()),
            Event::Cleared => {}
            other => panic!("{other:?} has no streamed form"),
        }
    }
}

const BODIES: [&str; 3] = ["single_rank", "adp2", "v2"];

#[test]
fn every_truncation_and_bit_flip_of_a_buffered_body_is_survived() {
    for name in BODIES {
        let file = json(&format!("trtllm/http_kv_cache_events_{name}.json"));
        let body = serde_json::to_vec(&file["body"]).unwrap();
        for length in 0..body.len() {
            assert_eq!(
                trtllm::decode_body(&body[..length]).unwrap_err().label(),
                "json"
            );
        }
        let mut damaged = body.clone();
        for bit in 0..body.len() * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            _ = trtllm::decode_body(&damaged);
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn every_truncation_and_bit_flip_of_the_list_of_sources_is_survived() {
    let body = read("vllm-real/kv_event_sources-dp2.json").into_bytes();
    for length in 0..body.trim_ascii_end().len() {
        assert!(vllm::parse_kv_event_sources(&body[..length], "host").is_err());
    }
    let mut damaged = body.clone();
    for bit in 0..body.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(endpoints) = vllm::parse_kv_event_sources(&damaged, "host") {
            assert!(endpoints.len() <= 2);
        }
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_short_payload_that_promises_four_billion_elements_is_truncated() {
    let heads: [&[u8]; 6] = [
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
        &[0xdf, 0xff, 0xff, 0xff, 0xff],
        &[0xdb, 0xff, 0xff, 0xff, 0xff],
        &[0xc6, 0xff, 0xff, 0xff, 0xff],
        &[0xc9, 0xff, 0xff, 0xff, 0xff],
        // A promise inside an otherwise sound batch.
        &[0x93, 0x00, 0xdd, 0xff, 0xff, 0xff, 0xff, 0x00],
    ];
    for head in heads {
        assert_eq!(decode_batch(head).unwrap_err().label(), "truncated");
    }
}

#[test]
fn nesting_of_any_depth_is_survived() {
    let deep = [vec![0x92, 0x00], vec![0x91; 1 << 20], vec![0xc0]].concat();

    let batch = decode_batch(&deep).unwrap();

    assert_eq!(batch.ts, Timestamp::ZERO);
    assert!(matches!(batch.events[..], [Event::Malformed { .. }]));
}

#[test]
fn payloads_beyond_any_engines_are_refused() {
    let large = vec![0xc0; (16 << 20) + 1];
    assert_eq!(decode_batch(&large).unwrap_err().label(), "too_large");

    let events = (1_u32 << 17) + 1;
    let mut many = vec![0x92, 0x00, 0xdd];
    many.extend(events.to_be_bytes());
    many.extend(vec![0xc0; events as usize]);
    assert_eq!(decode_batch(&many).unwrap_err().label(), "too_many_events");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(batch) = decode_batch(&bytes) {
            holds_together(&batch, bytes.len());
        }
        _ = trtllm::decode_body(&bytes);
        _ = vllm::parse_kv_event_sources(&bytes, "host");
        _ = vllm::parse_usage(&bytes);
        _ = vllm::parse_models(&bytes);
        _ = vllm::tokenize_request(&bytes);
        _ = vllm::parse_tokenized(&bytes);
    }

    #[test]
    fn arbitrary_frames_never_panic(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..12), 0..6),
    ) {
        _ = decode_frames(&frames);
        _ = decode_replay(&frames);
        _ = decode_replay_request(&frames);
    }

    #[test]
    fn arbitrary_metrics_never_panic(
        lines in proptest::collection::vec(
            "(vllm:num_requests_running|vllm:cache_config_info)?[{]?(engine=\"[0-9\\\\\"]{0,12})?.{0,20}",
            0..8,
        ),
    ) {
        _ = vllm::parse_metrics(&lines.join("\n"));
    }

    #[test]
    fn events_of_any_shape_never_panic(value in event_like()) {
        let mut bytes = vec![0x93, 0x00, 0x91];
        rmpv::encode::write_value(&mut bytes, &value).unwrap();
        bytes.push(0xc0);
        let batch = decode_batch(&bytes).unwrap();
        prop_assert_eq!(batch.events.len(), 1);
        holds_together(&batch, bytes.len());
    }
}

/// Values that get past the tag: maps and arrays whose fields hold anything.
fn event_like() -> impl Strategy<Value = rmpv::Value> {
    let scalar = prop_oneof![
        Just(rmpv::Value::Nil),
        any::<u64>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (0_u64..4).prop_map(Into::into),
        "[a-z]{0,4}".prop_map(Into::into),
        proptest::collection::vec(any::<u8>(), 0..4).prop_map(rmpv::Value::Binary),
    ];
    let anything = scalar.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(rmpv::Value::Array),
            proptest::collection::vec((inner.clone(), inner), 0..3).prop_map(rmpv::Value::Map),
        ]
    });
    let tag = prop_oneof![Just("BlockStored"), Just("BlockRemoved"), Just("Other")];
    let name = prop_oneof![
        Just("block_hashes"),
        Just("parent_block_hash"),
        Just("token_ids"),
        Just("block_size"),
        Just("medium"),
        Just("lora_name"),
        Just("extra_keys"),
        Just("mm_keys"),
    ];
    let array = (
        tag.clone(),
        proptest::collection::vec(anything.clone(), 0..12),
    )
        .prop_map(|(tag, mut fields)| {
            fields.insert(0, tag.into());
            rmpv::Value::Array(fields)
        });
    let map =
        (tag, proptest::collection::vec((name, anything), 0..12)).prop_map(|(tag, fields)| {
            let fields = fields.into_iter().map(|(name, value)| (name.into(), value));
            rmpv::Value::Map(
                [("type".into(), tag.into())]
                    .into_iter()
                    .chain(fields)
                    .collect(),
            )
        });
    prop_oneof![array, map]
}
