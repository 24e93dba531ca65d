//! TensorRT-LLM: how it is told conversations, what its worker and its metrics say, and its buffered events.
//!
//! Buffered events are the JSON bodies of `POST /kv_cache_events`. Reading a body empties the
//! engine's buffer, so that whatever cannot be read here is lost: one bad event leaves the others alone.

mod conversation;
mod encode;
mod gauges;
mod worker_info;

use std::sync::Arc;

use domain::{DpRank, EngineHash, Tier};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::event::cut;
use crate::{Event, EventError, Medium, Moved, Stored};

pub use conversation::{CONVERSATION_FIELD, conversation_params, lists_models};
pub use encode::encode_item;
pub use gauges::{encode_metrics, parse_metrics};
pub use worker_info::{Conversations, WorkerInfo, WorkerInfoError, parse_worker_info};

/// The largest body that is read, in bytes. Every token takes some 70 bytes of JSON.
const MAX_BODY_BYTES: usize = 256 << 20;
/// The longest block hash as text, in bytes; the longest known is a SHA-256 in hexadecimal.
const MAX_HASH_BYTES: usize = 256;

/// One item of a body.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The rank's own count of its events; a hole means that events were lost. None when the item does not
    /// say, which is to be taken for a hole.
    pub event_id: Option<u64>,
    /// The rank. None without attention data parallelism, where there is only rank 0.
    pub dp_rank: Option<DpRank>,
    /// The attention window in tokens: a block is announced once for each, and only the largest window's
    /// announcements stand for a whole prefix.
    pub window_size: Option<u64>,
    /// The layer group (KV cache manager V2). The events' own `group` is left empty.
    pub layer_group: Option<u32>,
    /// What changed, in order. A store whose blocks differ in fill, place or salt becomes several, each the
    /// child of the one before; a block that is not full has a smaller block size than its siblings.
    pub events: Vec<Event>,
}

/// Why a body cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It is larger than any engine's.
    #[error("the body of {bytes} bytes is larger than {MAX_BODY_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It is not a JSON array.
    #[error("read the body as a JSON array")]
    Json(#[from] serde_json::Error),
}

impl BodyError {
    /// A name for metrics, one of a fixed few.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too_large",
            Self::Json(_) => "json",
        }
    }
}

/// Reads a body. Empty items, which stand for nothing, are left out.
pub fn decode_body(body: &[u8]) -> Result<Vec<Item>, BodyError> {
    if body.len() > MAX_BODY_BYTES {
        return Err(BodyError::TooLarge { bytes: body.len() });
    }
    let items: Vec<&RawValue> = serde_json::from_slice(body)?;
    Ok(items.into_iter().filter_map(item).collect())
}

#[derive(Default, Deserialize)]
struct Envelope<'a> {
    event_id: Option<u64>,
    attention_dp_rank: Option<u32>,
    window_size: Option<u64>,
    layer_group_id: Option<u32>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Tag {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct CreatedData {
    num_blocks_per_cache_level: Vec<u64>,
}

#[derive(Deserialize)]
struct StoredData {
    parent_hash: Option<Hash>,
    blocks: Vec<Block>,
}

#[derive(Deserialize)]
struct RemovedData {
    block_hashes: Vec<Hash>,
}

#[derive(Deserialize)]
struct UpdatedData {
    block_hash: Hash,
    cache_level: Option<LevelChange>,
}

#[derive(Deserialize)]
struct LevelChange {
    old_value: u32,
    new_value: u32,
}

#[derive(Deserialize)]
struct Block {
    block_hash: Hash,
    tokens: Vec<Token>,
    #[serde(default)]
    cache_level: u32,
    #[serde(default)]
    mm_keys: Vec<serde::de::IgnoredAny>,
    cache_salt: Option<String>,
}

#[derive(Deserialize)]
struct Token {
    token_id: TokenId,
    #[serde(default)]
    token_extra_id: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenId {
    Number(u32),
    /// A digest of what stands in the token's place.
    Digest(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Hash {
    Unsigned(u64),
    Signed(i64),
    Text(String),
}

fn item(raw: &RawValue) -> Option<Item> {
    let (envelope, events) = match parse::<Envelope<'_>>(raw) {
        Ok(envelope) => {
            let events = match envelope.data {
                Some(data) => events(data),
                None if envelope.event_id.is_none() => return None,
                None => Err(EventError::Missing { field: "data" }),
            };
            (envelope, events)
        }
        Err(why) => (Envelope::default(), Err(why)),
    };
    Some(Item {
        event_id: envelope.event_id,
        dp_rank: envelope.attention_dp_rank.map(DpRank::new),
        window_size: envelope.window_size,
        layer_group: envelope.layer_group_id,
        events: events.unwrap_or_else(|why| vec![Event::Malformed { why }]),
    })
}

fn parse<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, EventError> {
    serde_json::from_str(raw.get()).map_err(|error| EventError::Json {
        reason: error.to_string(),
    })
}

fn events(data: &RawValue) -> Result<Vec<Event>, EventError> {
    let event = match parse::<Tag>(data)?.kind.as_str() {
        "stored" => return stored(parse(data)?),
        "removed" => {
            let removed: RemovedData = parse(data)?;
            let hashes = removed.block_hashes.into_iter().map(engine_hash);
            Event::Gone {
                block_hashes: hashes.collect::<Result<_, _>>()?,
            }
        }
        "updated" => updated(parse(data)?)?,
        "created" => {
            let created: CreatedData = parse(data)?;
            Event::Created {
                blocks_per_level: created.num_blocks_per_cache_level,
            }
        }
        unknown => Event::Unknown {
            tag: cut(unknown).to_owned(),
        },
    };
    Ok(vec![event])
}

fn updated(data: UpdatedData) -> Result<Event, EventError> {
    let Some(change) = data.cache_level else {
        return Ok(Event::NothingMoved);
    };
    Ok(Event::Moved(Moved {
        block_hash: engine_hash(data.block_hash)?,
        from: level(change.old_value),
        to: level(change.new_value),
    }))
}

/// One store for each run of blocks that agree in fill, place and salt.
fn stored(data: StoredData) -> Result<Vec<Event>, EventError> {
    let mut parent = data.parent_hash.map(engine_hash).transpose()?;
    let mut runs: Vec<Stored> = Vec::new();
    for block in data.blocks {
        let block_hash = engine_hash(block.block_hash)?;
        let block_size =
            u32::try_from(block.tokens.len()).map_err(|_| EventError::Range { field: "tokens" })?;
        let medium = level(block.cache_level);
        let salt = block
            .cache_salt
            .filter(|salt| !salt.is_empty())
            .map(Arc::from);
        let run = match runs.last_mut() {
            Some(run)
                if run.block_size == block_size && run.medium == medium && run.salt == salt =>
            {
                run
            }
            _ => {
                runs.push(Stored {
                    block_hashes: Vec::new(),
                    parent: parent.take(),
                    token_ids: Vec::new(),
                    opaque_tokens: 0,
                    block_size,
                    medium,
                    group: None,
                    spec_kind: None,
                    lora: None,
                    salt,
                    session: None,
                });
                runs.last_mut().expect("it was just pushed")
            }
        };
        parent = Some(block_hash.clone());
        run.block_hashes.push(block_hash);
        match plain_tokens(&block.tokens, &block.mm_keys) {
            Some(tokens) if run.opaque_tokens == 0 => run.token_ids.extend(tokens),
            _ => run.opaque_tokens += block.tokens.len(),
        }
    }
    Ok(runs.into_iter().map(Event::Stored).collect())
}

/// A block's tokens, where they say all of its content.
fn plain_tokens(tokens: &[Token], mm_keys: &[serde::de::IgnoredAny]) -> Option<Vec<u32>> {
    if !mm_keys.is_empty() {
        return None;
    }
    tokens
        .iter()
        .map(|token| match token.token_id {
            TokenId::Number(id) if token.token_extra_id == 0 => Some(id),
            TokenId::Number(_) | TokenId::Digest(_) => None,
        })
        .collect()
}

fn engine_hash(hash: Hash) -> Result<EngineHash, EventError> {
    let text = match hash {
        Hash::Unsigned(value) => return Ok(EngineHash::Int(value)),
        Hash::Signed(value) => return Ok(EngineHash::Int(value.cast_unsigned())),
        Hash::Text(text) => text,
    };
    if text.len() > MAX_HASH_BYTES {
        return Err(EventError::TooLong {
            field: "block_hash",
            limit: MAX_HASH_BYTES,
        });
    }
    Ok(EngineHash::Bytes(text.as_bytes().into()))
}

fn level(level: u32) -> Medium {
    match level {
        0 => Medium::Tier(Tier::Gpu),
        1 => Medium::Tier(Tier::Host),
        2 => Medium::Tier(Tier::Disk),
        other => Medium::Unknown(format!("level {other}").into()),
    }
}
