//! Buffered events as a TensorRT-LLM writes them, for a fake one.

use domain::{DpRank, EngineHash, Tier};
use serde_json::{Value, json};

use crate::{Event, Medium, Stored};

/// One item of the body of `POST /kv_cache_events`; none for an event that such an engine has no word for.
pub fn encode_item(
    event_id: u64,
    dp_rank: DpRank,
    window_size: u64,
    event: &Event,
) -> Option<String> {
    let data = match event {
        Event::Created { blocks_per_level } => {
            json!({"type": "created", "num_blocks_per_cache_level": blocks_per_level})
        }
        Event::Stored(stored) => stored_data(stored)?,
        Event::Gone { block_hashes } => {
            let hashes: Vec<Value> = block_hashes.iter().map(hash).collect();
            json!({"type": "removed", "block_hashes": hashes})
        }
        Event::Moved(moved) => {
            let (old, new) = (level(&moved.from)?, level(&moved.to)?);
            let change = json!({"type": "event_diff", "new_value": new, "old_value": old});
            json!({"type": "updated", "block_hash": hash(&moved.block_hash), "cache_level": change, "priority": null})
        }
        Event::Removed(_)
        | Event::Cleared
        | Event::NothingMoved
        | Event::Unknown { .. }
        | Event::Malformed { .. } => return None,
    };
    let item = json!({"event_id": event_id, "data": data, "window_size": window_size, "attention_dp_rank": dp_rank.get()});
    Some(item.to_string())
}

fn stored_data(stored: &Stored) -> Option<Value> {
    let level = level(&stored.medium)?;
    let tokens = stored.token_ids.chunks(stored.block_size.max(1) as usize);
    let blocks = stored.block_hashes.iter().zip(tokens);
    let blocks: Vec<Value> = blocks
        .map(|(block_hash, tokens)| {
            let token = |id: &u32| json!({"type": "unique_token", "token_id": id, "token_extra_id": 0});
            let tokens: Vec<Value> = tokens.iter().map(token).collect();
            json!({"type": "stored_block", "block_hash": hash(block_hash), "tokens": tokens, "cache_level": level,
                "priority": 35, "mm_keys": [], "cache_salt": stored.salt.as_deref()})
        })
        .collect();
    let parent = stored.parent.as_ref().map(hash);
    Some(json!({"type": "stored", "parent_hash": parent, "blocks": blocks}))
}

fn hash(hash: &EngineHash) -> Value {
    match hash {
        EngineHash::Int(value) => (*value).into(),
        EngineHash::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
    }
}

fn level(medium: &Medium) -> Option<u32> {
    match medium.tier()? {
        Tier::Gpu => Some(0),
        Tier::Host => Some(1),
        Tier::Disk => Some(2),
    }
}
