//! What an engine announces about one rank's cache, whichever engine it is.

use std::sync::Arc;

use domain::{EngineHash, Tier};

use crate::Stored;

/// One change of one rank's cache, as announced.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Blocks were filled.
    Stored(Stored),
    /// One copy of each block left a place.
    Removed(Removed),
    /// Blocks left whichever tier they were in (TensorRT-LLM).
    Gone {
        /// Which blocks.
        block_hashes: Vec<EngineHash>,
    },
    /// One block went from one tier to another (TensorRT-LLM).
    Moved(Moved),
    /// The rank holds nothing any more.
    Cleared,
    /// A cache came into being (TensorRT-LLM); whatever it held before is gone.
    Created {
        /// Blocks it can hold, GPU memory first, then host memory.
        blocks_per_level: Vec<u64>,
    },
    /// Something that leaves what the rank holds as it is, such as another eviction priority.
    NothingMoved,
    /// A kind of event this version does not know. The rank's index may be wrong from here on.
    Unknown {
        /// Its name, cut to 64 bytes.
        tag: String,
    },
    /// An event whose framing is sound but whose content is not. It says nothing about the events beside
    /// it, which are decoded as usual; the rank's index may be wrong from here on.
    Malformed {
        /// What is wrong with it.
        why: EventError,
    },
}

/// Blocks that left a place. Each hash stands for one copy: a block stored twice is removed twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Which blocks.
    pub block_hashes: Vec<EngineHash>,
    /// The place they left.
    pub medium: Medium,
    /// The engine's KV cache group; none where it has but one.
    pub group: Option<u32>,
}

/// A block that changed its tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which block.
    pub block_hash: EngineHash,
    /// Where it was.
    pub from: Medium,
    /// Where it is.
    pub to: Medium,
}

/// Where blocks lie, as the engine says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Memory of this worker.
    Tier(Tier),
    /// Memory shared with or owned by others; it says nothing about this rank.
    Remote,
    /// A name this version does not know, cut to 64 bytes.
    Unknown(Arc<str>),
}

impl Medium {
    /// The tier, where the blocks lie in one of this worker's own.
    pub const fn tier(&self) -> Option<Tier> {
        match self {
            Self::Tier(tier) => Some(*tier),
            Self::Remote | Self::Unknown(_) => None,
        }
    }

    /// Reads the name an engine gives to a place, in any case.
    pub(crate) fn named(name: &str) -> Self {
        match name.to_ascii_uppercase().as_str() {
            "GPU" | "DEVICE" => Self::Tier(Tier::Gpu),
            "CPU" | "CPU_PINNED" | "CPU_TIER1" => Self::Tier(Tier::Host),
            "DISK" | "NVME" | "STORAGE" | "CPU_TIER2" => Self::Tier(Tier::Disk),
            "EXTERNAL" | "NETWORK" | "REMOTE" | "SHARED" => Self::Remote,
            _ => Self::Unknown(cut(name).into()),
        }
    }
}

/// Which LoRA adapter blocks were computed under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lora {
    /// By the name that clients use.
    Named(Arc<str>),
    /// By a number that means nothing outside the engine's process (vLLM before 0.14).
    Unnamed(i64),
}

/// What kind of attention a KV cache group serves (vLLM from 0.22 on).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecKind {
    /// Every token attends to the whole prefix.
    FullAttention,
    /// The same, compressed.
    MlaAttention,
    /// The same, with sink tokens.
    SinkFullAttention,
    /// Anything that needs only a part of the prefix or keeps another kind of state, by its name, cut to
    /// 64 bytes.
    Other(Arc<str>),
}

impl SpecKind {
    /// Whether a block of the group stands for everything before it, so that it can be indexed.
    pub const fn spans_prefix(&self) -> bool {
        !matches!(self, Self::Other(_))
    }

    /// The engine's name for it.
    pub fn name(&self) -> &str {
        match self {
            Self::FullAttention => "full_attention",
            Self::MlaAttention => "mla_attention",
            Self::SinkFullAttention => "sink_full_attention",
            Self::Other(name) => name,
        }
    }

    pub(crate) fn named(name: &str) -> Self {
        match name {
            "full_attention" => Self::FullAttention,
            "mla_attention" => Self::MlaAttention,
            "sink_full_attention" => Self::SinkFullAttention,
            other => Self::Other(cut(other).into()),
        }
    }
}

/// Why the content of one event cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// It is neither a map nor an array that says what it is.
    #[error("an event is a tagged map or array")]
    Untagged,
    /// A field that it must have is not there.
    #[error("{field} is missing")]
    Missing {
        /// Which.
        field: &'static str,
    },
    /// A field holds something of another type.
    #[error("{field} cannot be {found}")]
    Type {
        /// Which.
        field: &'static str,
        /// What it holds.
        found: &'static str,
    },
    /// A number is outside its field's range.
    #[error("{field} holds a number out of range")]
    Range {
        /// Which.
        field: &'static str,
    },
    /// A text, hash or list is longer than any engine's.
    #[error("{field} is longer than {limit}")]
    TooLong {
        /// Which.
        field: &'static str,
        /// The longest allowed, in bytes or elements.
        limit: usize,
    },
    /// A JSON event that is not of its kind's shape.
    #[error("the event's JSON has another shape: {reason}")]
    Json {
        /// What the JSON reader says.
        reason: String,
    },
}

impl EventError {
    /// A name for metrics, one of a fixed few.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Untagged => "untagged",
            Self::Missing { .. } => "missing_field",
            Self::Type { .. } => "field_type",
            Self::Range { .. } => "field_range",
            Self::TooLong { .. } => "field_length",
            Self::Json { .. } => "json_shape",
        }
    }
}

/// The longest name of something unknown that is kept, in bytes.
const MAX_UNKNOWN_NAME_BYTES: usize = 64;

/// The leading part of an unknown name that is kept.
pub(crate) fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_UNKNOWN_NAME_BYTES)]
}
