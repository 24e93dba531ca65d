//! Every captured message decodes to what its file says it means.

use std::collections::BTreeSet;

use domain::{DpRank, EngineHash, EventSeq, Tier, Timestamp};
use engine_wire::{Event, Lora, Medium, Removed, SpecKind, Stored, decode_batch, decode_frames};
use serde_json::Value;

use crate::corpus::{self, Captured, captured, files, json, unhex, unhex_all};

#[test]
fn every_captured_message_decodes_to_its_meaning() {
    let messages = captured();
    // One fewer would mean that a file was no longer found.
    assert_eq!(messages.len(), 156);
    for message in &messages {
        check(message);
    }
}

fn check(message: &Captured) {
    let name = &message.name;
    let decoded = named(&message.decoded);
    let read = decode_frames(&message.frames).unwrap();
    if let Some(seq) = decoded.get("seq") {
        assert_eq!(read.seq, EventSeq::new(seq.as_u64().unwrap()), "{name}");
    }
    if let Some(topic) = decoded.get("topic") {
        assert_eq!(read.topic, topic.as_str().unwrap().as_bytes(), "{name}");
    }
    let batch = decode_batch(read.payload).unwrap();
    let ts = decoded["ts"].as_f64().unwrap();
    assert_eq!(batch.ts, Timestamp::from_secs_f64(ts), "{name}");
    let rank = decoded
        .get("data_parallel_rank")
        .or(decoded.get("attn_dp_rank"));
    assert_eq!(
        batch.dp_rank,
        rank.and_then(number).map(DpRank::new),
        "{name}"
    );
    let expected: Vec<_> = decoded["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(event)
        .collect();
    assert_eq!(batch.events, expected, "{name}");
}

/// What real engines sent is kept as raw msgpack: an array of time, events and rank.
fn named(decoded: &Value) -> Value {
    match decoded.as_array() {
        Some(parts) => serde_json::json!({
            "ts": parts[0], "events": parts[1], "data_parallel_rank": parts[2],
        }),
        None => decoded.clone(),
    }
}

fn event(event: &Value) -> Event {
    match event["type"].as_str().unwrap() {
        "BlockStored" => Event::Stored(stored(event)),
        "BlockRemoved" => Event::Removed(Removed {
            block_hashes: hashes(event),
            medium: medium(event),
            group: event.get("group_idx").and_then(number),
        }),
        "AllBlocksCleared" => Event::Cleared,
        tag => panic!("no meaning is known for {tag}"),
    }
}

fn stored(event: &Value) -> Stored {
    let lora = match (event.get("lora_name").and_then(text), &event["lora_id"]) {
        (Some(name), _) => Some(Lora::Named(name.into())),
        (None, Value::Null) => None,
        (None, id) => Some(Lora::Unnamed(id.as_i64().unwrap())),
    };
    let own_salt = event.get("cache_salt").and_then(text);
    let slot_salt = event.pointer("/metadata/cache_salt").and_then(text);
    let (keys_salt, opaque) = extra(event);
    let tokens = event["token_ids"].as_array().unwrap();
    let token_ids: Vec<u32> = tokens.iter().filter(|_| !opaque).map(token).collect();
    Stored {
        block_hashes: hashes(event),
        parent: Some(&event["parent_block_hash"])
            .filter(|it| !it.is_null())
            .map(hash),
        opaque_tokens: tokens.len() - token_ids.len(),
        token_ids,
        block_size: number(&event["block_size"]).unwrap(),
        medium: medium(event),
        group: event.get("group_idx").and_then(number),
        spec_kind: event
            .get("kv_cache_spec_kind")
            .and_then(text)
            .map(|kind| match kind {
                "full_attention" => SpecKind::FullAttention,
                "mla_attention" => SpecKind::MlaAttention,
                other => SpecKind::Other(other.into()),
            }),
        lora,
        salt: own_salt.or(slot_salt).or(keys_salt).map(Into::into),
        session: event.get("session_id").and_then(text).map(Into::into),
    }
}

/// The salt, and whether no block's content is its tokens: all the shapes that occur in the files, each with
/// its meaning written by hand.
fn extra(event: &Value) -> (Option<&str>, bool) {
    if event.get("mm_keys").is_some() {
        return (None, true);
    }
    let Some(first) = event.get("extra_keys").and_then(|keys| keys.get(0)) else {
        return (None, false);
    };
    match first.to_string().as_str() {
        "null" | r#"["sql-adapter"]"# => (None, false),
        r#"["tenant-a"]"# => (Some("tenant-a"), false),
        r#"["mm-hash-abc",4,"tenant-A"]"# => (Some("tenant-A"), true),
        other => panic!("no meaning is known for {other}"),
    }
}

fn medium(event: &Value) -> Medium {
    match event.get("medium").and_then(text) {
        None | Some("GPU") => Medium::Tier(Tier::Gpu),
        Some("CPU" | "CPU_PINNED") => Medium::Tier(Tier::Host),
        Some(other) => panic!("no meaning is known for {other}"),
    }
}

fn hashes(event: &Value) -> Vec<EngineHash> {
    event["block_hashes"]
        .as_array()
        .unwrap()
        .iter()
        .map(hash)
        .collect()
}

/// A number as the engine sent it, or its unsigned form or its bytes as text.
fn hash(value: &Value) -> EngineHash {
    if let Some(signed) = value.as_i64() {
        return EngineHash::Int(signed as u64);
    }
    if let Some(unsigned) = value.as_u64() {
        return EngineHash::Int(unsigned);
    }
    match value.get("u64") {
        Some(unsigned) => EngineHash::Int(unsigned.as_str().unwrap().parse().unwrap()),
        None => EngineHash::Bytes(unhex(&value["bytes_hex"]).into()),
    }
}

fn token(value: &Value) -> u32 {
    number(value.get(0).unwrap_or(value)).unwrap()
}

fn text(value: &Value) -> Option<&str> {
    value.as_str()
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().map(|number| number.try_into().unwrap())
}

#[test]
fn a_batch_without_a_rank_has_none() {
    for version in ["0.9.2", "0.11.2", "0.16.0", "0.23.0", "0.33.0"] {
        let file = json(&format!("vllm/{version}/payload_without_rank.json"));
        let batch = decode_batch(&unhex(&file["payload_hex"])).unwrap();
        assert_eq!(batch.dp_rank, None, "{version}");
        assert_eq!(batch.events, [Event::Cleared], "{version}");
    }
}

#[test]
fn a_load_statistic_is_a_message_but_no_batch() {
    let file = json("sglang/0.5.23/load_stat.json");
    let frames = unhex_all(&file["frames_hex"]);

    let message = decode_frames(&frames).unwrap();

    assert_eq!(message.topic, b"load");
    assert_eq!(decode_batch(message.payload).unwrap_err().label(), "time");
}

#[test]
fn every_file_is_read_by_some_test() {
    let known = [
        "frames_hex",
        "messages",
        "payload_hex",
        "replies_frames_hex",
        "body",
    ];
    for file in files() {
        let first = file.documents[0].as_object().unwrap();
        assert!(
            known.iter().any(|key| first.contains_key(*key)),
            "{}",
            file.path
        );
    }
    let unique: BTreeSet<_> = corpus::WITHOUT_EVENTS.into_iter().collect();
    for path in unique {
        corpus::read(path);
    }
}
