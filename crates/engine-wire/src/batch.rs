//! Batches of events: the msgpack payload of vLLM, SGLang and TensorRT-LLM's streaming publisher.

use domain::{DpRank, Timestamp};

use crate::Event;
use crate::msgpack::{Broken, Cursor, Item};
use crate::streamed::decode_event;

/// The largest payload that is read, in bytes: some three million tokens, tens of times what a step stores.
const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// The most events in one batch. An engine removes blocks one by one, a few thousand in a large step.
const MAX_EVENTS: usize = 1 << 17;

/// What one scheduler step of one rank changed.
#[derive(Clone, Debug, PartialEq)]
pub struct EventBatch {
    /// When the engine says it published.
    pub ts: Timestamp,
    /// The rank, where the engine says; otherwise it is the socket's.
    pub dp_rank: Option<DpRank>,
    /// What changed, in order.
    pub events: Vec<Event>,
}

/// Why a payload is no batch. Nothing in it can be used: what it announced is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// It is larger than any engine's.
    #[error("the payload of {bytes} bytes is larger than {MAX_PAYLOAD_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It is not msgpack.
    #[error("the payload is not msgpack")]
    Framing(#[from] Broken),
    /// Bytes follow the batch.
    #[error("bytes follow the batch")]
    TrailingBytes,
    /// It is neither an array of time and events, nor a map of them.
    #[error("a batch cannot be {found}")]
    NotABatch {
        /// What it is.
        found: &'static str,
    },
    /// The time of publication is missing or no number.
    #[error("the batch's time is missing or no number")]
    Time,
    /// The list of events is missing or no list.
    #[error("the batch's events are missing or no array")]
    Events,
    /// There are more events than any engine sends.
    #[error("the batch has {events} events, more than {MAX_EVENTS}")]
    TooManyEvents {
        /// How many.
        events: usize,
    },
    /// The rank is there and is no rank.
    #[error("the batch's rank is not a number from 0 to 2^32 - 1")]
    Rank,
}

impl BatchError {
    /// A name for metrics, one of a fixed few.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too_large",
            Self::Framing(Broken::Truncated) => "truncated",
            Self::Framing(Broken::Reserved) => "reserved_byte",
            Self::TrailingBytes => "trailing_bytes",
            Self::NotABatch { .. } => "not_a_batch",
            Self::Time => "time",
            Self::Events => "events",
            Self::TooManyEvents { .. } => "too_many_events",
            Self::Rank => "rank",
        }
    }
}

/// Reads a batch: `[time, events]`, `[time, events, rank, ...]` or a map of them.
///
/// An event that cannot be read becomes [`Event::Malformed`] or [`Event::Unknown`] and leaves the others
/// alone, as long as the msgpack around it is sound.
pub fn decode_batch(payload: &[u8]) -> Result<EventBatch, BatchError> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(BatchError::TooLarge {
            bytes: payload.len(),
        });
    }
    let mut cursor = Cursor::new(payload);
    let parts = match cursor.item()? {
        Item::Array(elements) => array_parts(&mut cursor, elements)?,
        Item::Map(pairs) => map_parts(&mut cursor, pairs)?,
        other => {
            return Err(BatchError::NotABatch {
                found: other.name(),
            });
        }
    };
    if !cursor.is_at_end() {
        return Err(BatchError::TrailingBytes);
    }
    Ok(EventBatch {
        ts: parts.ts.ok_or(BatchError::Time)?,
        dp_rank: parts.dp_rank,
        events: parts.events.ok_or(BatchError::Events)?,
    })
}

/// The parts of a batch as far as they have been read.
#[derive(Default)]
struct Parts {
    ts: Option<Timestamp>,
    events: Option<Vec<Event>>,
    dp_rank: Option<DpRank>,
}

fn array_parts(cursor: &mut Cursor<'_>, elements: usize) -> Result<Parts, BatchError> {
    let mut parts = Parts::default();
    for position in 0..elements {
        match position {
            0 => parts.ts = Some(time(cursor)?),
            1 => parts.events = Some(events(cursor)?),
            2 => parts.dp_rank = rank(cursor)?,
            _ => _ = cursor.value()?,
        }
    }
    Ok(parts)
}

fn map_parts(cursor: &mut Cursor<'_>, pairs: usize) -> Result<Parts, BatchError> {
    let mut parts = Parts::default();
    for _ in 0..pairs {
        match cursor.element()?.0 {
            Item::Text(b"ts") => parts.ts = Some(time(cursor)?),
            Item::Text(b"events") => parts.events = Some(events(cursor)?),
            Item::Text(b"data_parallel_rank" | b"attn_dp_rank") => parts.dp_rank = rank(cursor)?,
            _ => _ = cursor.value()?,
        }
    }
    Ok(parts)
}

fn time(cursor: &mut Cursor<'_>) -> Result<Timestamp, BatchError> {
    match cursor.item()? {
        Item::Float(seconds) => Ok(Timestamp::from_secs_f64(seconds)),
        Item::Unsigned(seconds) => Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000))),
        _ => Err(BatchError::Time),
    }
}

fn rank(cursor: &mut Cursor<'_>) -> Result<Option<DpRank>, BatchError> {
    match cursor.item()? {
        Item::Nil => Ok(None),
        Item::Unsigned(rank) => u32::try_from(rank)
            .map(|rank| Some(DpRank::new(rank)))
            .map_err(|_| BatchError::Rank),
        _ => Err(BatchError::Rank),
    }
}

fn events(cursor: &mut Cursor<'_>) -> Result<Vec<Event>, BatchError> {
    let Item::Array(count) = cursor.item()? else {
        return Err(BatchError::Events);
    };
    if count > MAX_EVENTS {
        return Err(BatchError::TooManyEvents { events: count });
    }
    (0..count).map(|_| Ok(decode_event(cursor)?)).collect()
}
