//! Shapes of batches and events that occur, or have occurred, and what each means.

use domain::{DpRank, EngineHash, Tier, Timestamp};
use engine_wire::{Event, EventBatch, EventError, Lora, Medium, SpecKind, Stored, decode_batch};
use rmpv::Value as Packed;
use serde_json::{Value, json};

/// The payload of a value; `{"bytes": [..]}` stands for bytes.
fn pack(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &packed(value)).unwrap();
    bytes
}

fn packed(value: &Value) -> Packed {
    match value {
        Value::Null => Packed::Nil,
        Value::Bool(value) => (*value).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => value.into(),
            (None, Some(value)) => value.into(),
            (None, None) => number.as_f64().unwrap().into(),
        },
        Value::Array(values) => Packed::Array(values.iter().map(packed).collect()),
        Value::Object(pairs) => match pairs.get("bytes") {
            Some(bytes) => Packed::Binary(serde_json::from_value(bytes.clone()).unwrap()),
            None => Packed::Map(
                pairs
                    .iter()
                    .map(|(key, value)| (key.as_str().into(), packed(value)))
                    .collect(),
            ),
        },
    }
}

fn batch(value: Value) -> EventBatch {
    decode_batch(&pack(&value)).unwrap()
}

fn events<const N: usize>(events: [Value; N]) -> Vec<Event> {
    batch(json!([1.5, events.to_vec(), 0])).events
}

fn one(event: Value) -> Event {
    events([event]).remove(0)
}

fn stored(event: Value) -> Stored {
    match one(event) {
        Event::Stored(stored) => stored,
        other => panic!("not a store: {other:?}"),
    }
}

fn with(key: &str, value: Value) -> Value {
    let mut event = json!({
        "type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null,
        "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": null, "medium": "GPU",
    });
    event[key] = value;
    event
}

fn label(stored: &Stored) -> Result<usize, &'static str> {
    stored
        .full_blocks()
        .map(|blocks| blocks.len())
        .map_err(|reason| reason.label())
}

#[test]
fn a_batch_may_be_short_long_or_a_map() {
    let expected = |dp_rank: Option<u32>| EventBatch {
        ts: Timestamp::from_micros(1_500_000),
        dp_rank: dp_rank.map(DpRank::new),
        events: vec![Event::Cleared],
    };
    let cleared = json!([["AllBlocksCleared"]]);
    assert_eq!(batch(json!([1.5, cleared])), expected(None));
    assert_eq!(batch(json!([1.5, cleared, null])), expected(None));
    assert_eq!(batch(json!([1.5, cleared, 5])), expected(Some(5)));
    assert_eq!(
        batch(json!([1.5, cleared, 5, "later", {}])),
        expected(Some(5))
    );
    for rank in ["data_parallel_rank", "attn_dp_rank"] {
        let map = json!({"events": cleared, "ts": 1.5, rank: 5, "later": [1]});
        assert_eq!(batch(map), expected(Some(5)));
    }
    assert_eq!(batch(json!({"events": cleared, "ts": 1.5})), expected(None));
}

#[test]
fn what_is_no_batch_is_told_apart() {
    let cases = [
        (json!("text"), "not_a_batch"),
        (json!([]), "time"),
        (json!([1.5]), "events"),
        (json!(["soon", []]), "time"),
        (json!([1.5, {}]), "events"),
        (json!([1.5, [], -1]), "rank"),
        (json!([1.5, [], 4_294_967_296_u64]), "rank"),
        (json!([1.5, [], "0"]), "rank"),
        (json!({"ts": 1.5}), "events"),
    ];
    for (value, expected) in cases {
        assert_eq!(
            decode_batch(&pack(&value)).unwrap_err().label(),
            expected,
            "{value}"
        );
    }
    let mut trailing = pack(&json!([1.5, [], 0]));
    trailing.push(0);
    assert_eq!(
        decode_batch(&trailing).unwrap_err().label(),
        "trailing_bytes"
    );
    assert_eq!(decode_batch(&[0xc1]).unwrap_err().label(), "reserved_byte");
}

#[test]
fn array_events_of_every_length_mean_the_same() {
    let full = json!([
        "BlockStored",
        [1, 2],
        null,
        [1, 2, 3, 4],
        2,
        null,
        "GPU",
        null,
        [null, null],
        0,
        "full_attention",
        null,
        "LOCAL",
        "gpu",
        "s",
        [[5]],
        "later",
    ]);
    let plain = stored(with("medium", json!("GPU")));
    for length in [5, 6, 7, 8, 9] {
        let event = Value::from(full.as_array().unwrap()[..length].to_vec());
        assert_eq!(stored(event), plain, "{length} elements");
    }
    for length in [10, 12, 14, 15, 17] {
        let event = Value::from(full.as_array().unwrap()[..length].to_vec());
        let expected = Stored {
            group: Some(0),
            spec_kind: (length > 10).then_some(SpecKind::FullAttention),
            session: (length > 14).then(|| "s".into()),
            ..plain.clone()
        };
        assert_eq!(stored(event), expected, "{length} elements");
    }
}

#[test]
fn arrays_and_maps_mix_in_one_batch() {
    let both = events([
        json!(["BlockRemoved", [1]]),
        json!({"block_hashes": [1], "later": {"deep": [1]}, "type": "BlockRemoved"}),
    ]);
    assert!(matches!(both[0], Event::Removed(_)));
    assert_eq!(both[0], both[1]);
}

#[test]
fn an_event_that_cannot_be_read_leaves_the_others_alone() {
    let sound = json!(["AllBlocksCleared"]);
    let unreadable = [
        (json!(["BlockStored"]), "missing_field"),
        (json!({"type": "BlockRemoved"}), "missing_field"),
        (json!([]), "untagged"),
        (json!({"tag": "BlockStored"}), "untagged"),
        (json!("AllBlocksCleared"), "untagged"),
        (json!(7), "untagged"),
        (with("block_hashes", json!([1.5, 2])), "field_type"),
        (with("block_hashes", json!([null, 2])), "field_type"),
        (with("token_ids", json!([-1, 2])), "field_range"),
        (with("token_ids", json!([4_294_967_296_u64])), "field_range"),
        (with("token_ids", json!([[], 2])), "field_type"),
        (with("block_size", json!(-2)), "field_range"),
        (with("block_size", json!("2")), "field_type"),
        (with("medium", json!(0)), "field_type"),
        (with("session_id", json!("x".repeat(5000))), "field_length"),
        (
            with("block_hashes", json!(["x".repeat(300)])),
            "field_length",
        ),
        (with("lora_id", json!([])), "field_type"),
        (with("extra_keys", json!([7])), "field_type"),
    ];
    for (event, expected) in unreadable {
        let read = events([sound.clone(), event.clone(), sound.clone()]);
        let [Event::Cleared, Event::Malformed { why }, Event::Cleared] = &read[..] else {
            panic!("{event}: {read:?}");
        };
        assert_eq!(why.label(), expected, "{event}");
    }
    let missing = EventError::Missing {
        field: "block_hashes",
    };
    assert_eq!(
        one(json!(["BlockStored"])),
        Event::Malformed { why: missing }
    );
}

#[test]
fn an_unknown_kind_is_named_and_leaves_the_others_alone() {
    let long = "é".repeat(100);
    let read = events([
        json!(["BlockMoved", [1]]),
        json!({"type": long, "block_hashes": [1]}),
        json!(["AllBlocksCleared"]),
    ]);
    let unknown = |tag: &str| Event::Unknown {
        tag: tag.to_owned(),
    };
    assert_eq!(
        read,
        [
            unknown("BlockMoved"),
            unknown(&"é".repeat(32)),
            Event::Cleared
        ]
    );
}

#[test]
fn hashes_are_told_apart_by_type_and_kept_bit_by_bit() {
    let hashes = json!([-1, u64::MAX, 1_u64 << 63, i64::MIN, {"bytes": [1, 2]}, "id"]);
    let read = stored(with("block_hashes", hashes)).block_hashes;
    assert_eq!(
        read,
        [
            EngineHash::Int(u64::MAX),
            EngineHash::Int(u64::MAX),
            EngineHash::Int(1 << 63),
            EngineHash::Int(1 << 63),
            EngineHash::Bytes([1, 2].into()),
            EngineHash::Bytes((*b"id").into()),
        ]
    );
    let digest: Vec<u8> = (0..16).collect();
    let parent = stored(with("parent_block_hash", json!({"bytes": digest}))).parent;
    assert_eq!(parent, Some(EngineHash::Bytes(digest.into())));
}

#[test]
fn pairs_of_tokens_count_by_their_first() {
    let read = stored(with("token_ids", json!([[1, 2], [2, 3], [3, 4], [4, 5]])));
    assert_eq!(read.token_ids, [1, 2, 3, 4]);
    assert_eq!(label(&read), Ok(2));
}

#[test]
fn a_map_in_the_adapters_place_is_the_salt() {
    let array = |slot: Value| {
        stored(json!([
            "BlockStored",
            [1, 2],
            null,
            [1, 2, 3, 4],
            2,
            null,
            "GPU",
            slot
        ]))
    };
    assert_eq!(
        array(json!({"cache_salt": "t", "later": 1}))
            .salt
            .as_deref(),
        Some("t")
    );
    assert_eq!(array(json!({"cache_salt": null})).salt, None);
    assert_eq!(array(json!("sql")).lora, Some(Lora::Named("sql".into())));
    assert_eq!(array(json!("sql")).salt, None);
    assert_eq!(array(json!(null)), stored(with("medium", json!("GPU"))));
}

#[test]
fn the_salt_is_found_behind_the_adapter_and_only_at_the_root() {
    let salt = |extra_keys: Value, lora: Value, parent: Value| {
        let mut event = with("extra_keys", extra_keys);
        event["lora_name"] = lora;
        event["parent_block_hash"] = parent;
        let read = stored(event);
        (read.salt.as_deref().map(ToOwned::to_owned), label(&read))
    };
    let found = |text: &str| Some(text.to_owned());
    let none = Value::Null;
    assert_eq!(
        salt(json!([["t"], null]), none.clone(), none.clone()),
        (found("t"), Ok(2))
    );
    let both = json!([["sql", "t"], ["sql"]]);
    assert_eq!(salt(both, json!("sql"), none.clone()), (found("t"), Ok(2)));
    let only_adapter = json!([["sql"], ["sql"]]);
    assert_eq!(
        salt(only_adapter.clone(), json!("sql"), none.clone()),
        (None, Ok(2))
    );
    assert_eq!(salt(only_adapter, json!("sql"), json!(9)), (None, Ok(2)));
    let same_name = json!([["sql", "sql"], ["sql"]]);
    assert_eq!(
        salt(same_name, json!("sql"), none.clone()),
        (found("sql"), Ok(2))
    );
    // A bare text elsewhere is no salt but something that tokens do not say.
    assert_eq!(
        salt(json!([["t"], null]), none.clone(), json!(9)),
        (None, Err("opaque"))
    );
    assert_eq!(
        salt(json!([null, ["t"]]), none.clone(), none),
        (None, Ok(1))
    );
}

#[test]
fn blocks_end_where_content_is_not_tokens() {
    let opaque_at = |extra_keys: Value| label(&stored(with("extra_keys", extra_keys)));
    assert_eq!(opaque_at(json!([null, [["image", -4]]])), Ok(1));
    assert_eq!(opaque_at(json!([null, ["image", 4]])), Ok(1));
    assert_eq!(
        opaque_at(json!([[["image", 1]], [["image", -1]]])),
        Err("opaque")
    );
    assert_eq!(opaque_at(json!([null, [{"bytes": [1, 2, 3]}]])), Ok(1));
    assert_eq!(opaque_at(json!([[["image", 1], "t"], null])), Err("opaque"));
    let keys = json!([[], [{"type": "mm_key", "hash": "h", "start_offset": 0}]]);
    assert_eq!(label(&stored(with("mm_keys", keys))), Ok(1));
    let digests = stored(with("token_ids", json!([1, 2, 3, "digest"])));
    assert_eq!((digests.token_ids.len(), digests.opaque_tokens), (2, 2));
    assert_eq!(label(&digests), Ok(1));
}

#[test]
fn a_store_that_cannot_be_indexed_says_why() {
    let reason = |key: &str, value: Value| label(&stored(with(key, value)));
    assert_eq!(reason("block_hashes", json!([])), Err("no_blocks"));
    assert_eq!(reason("block_size", json!(0)), Err("placeholder"));
    assert_eq!(reason("token_ids", json!([])), Err("placeholder"));
    assert_eq!(reason("block_hashes", json!([1])), Err("more_tokens"));
    assert_eq!(reason("token_ids", json!([1, 2, 3])), Err("fewer_tokens"));
    assert_eq!(reason("lora_id", json!(7)), Err("unnamed_lora"));
    assert_eq!(reason("group_idx", json!(1)), Err("unknown_group"));
    assert_eq!(reason("group_idx", json!(0)), Ok(2));
    assert_eq!(
        reason("kv_cache_spec_kind", json!("mamba")),
        Err("part_of_prefix")
    );
    assert_eq!(reason("kv_cache_spec_kind", json!("mla_attention")), Ok(2));
    let mut second_group = with("group_idx", json!(1));
    second_group["kv_cache_spec_kind"] = json!("full_attention");
    assert_eq!(label(&stored(second_group)), Ok(2));
}

#[test]
fn a_block_smaller_than_its_siblings_keeps_its_own_size() {
    let mut partial = with("block_size", json!(3));
    partial["block_hashes"] = json!([1]);
    partial["token_ids"] = json!([1, 2, 3]);
    let read = stored(partial);
    let blocks: Vec<_> = read.full_blocks().unwrap().collect();
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].token_ids, [1, 2, 3]);
    assert_eq!(blocks[0].engine_hash, &EngineHash::Int(1));
}

#[test]
fn media_are_tiers_remote_or_unknown() {
    let medium = |name: &str| match one(json!(["BlockRemoved", [1], name])) {
        Event::Removed(removed) => removed.medium,
        other => panic!("{other:?}"),
    };
    for name in ["GPU", "DEVICE"] {
        assert_eq!(medium(name), Medium::Tier(Tier::Gpu));
    }
    for name in ["CPU", "cpu", "CPU_PINNED", "CPU_TIER1"] {
        assert_eq!(medium(name), Medium::Tier(Tier::Host));
    }
    for name in ["DISK", "NVME", "STORAGE", "CPU_TIER2"] {
        assert_eq!(medium(name), Medium::Tier(Tier::Disk));
    }
    for name in ["EXTERNAL", "REMOTE", "SHARED", "NETWORK"] {
        assert_eq!(medium(name), Medium::Remote);
    }
    assert_eq!(medium("FS"), Medium::Unknown("FS".into()));
    assert_eq!(medium("FS").tier(), None);
    let remote = json!({
        "type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "locality": "REMOTE",
    });
    assert!(matches!(one(remote), Event::Removed(removed) if removed.medium == Medium::Remote));
}

#[test]
fn one_removal_in_one_place_speaks_of_one_copy_there() {
    let read = events([
        with("medium", json!("GPU")),
        with("medium", json!("GPU")),
        with("medium", json!("CPU_PINNED")),
        json!(["BlockRemoved", [1], "GPU", 0]),
    ]);
    let tiers: Vec<_> = read
        .iter()
        .map(|event| match event {
            Event::Stored(stored) => (true, stored.medium.tier()),
            Event::Removed(removed) => (false, removed.medium.tier()),
            other => panic!("{other:?}"),
        })
        .collect();
    let (gpu, host) = (Some(Tier::Gpu), Some(Tier::Host));
    assert_eq!(
        tiers,
        [(true, gpu), (true, gpu), (true, host), (false, gpu)]
    );
}
