//! What inference engines say and hear: KV-cache events of vLLM, SGLang and TensorRT-LLM decoded into one
//! vocabulary, and the HTTP dialects of [`vllm`] and [`sglang`], both decoded and encoded. A fake engine speaks
//! with `encode_*` and `BatchEncoder` of either. Of [`llama_cpp`] only what it says of itself is read.
//!
//! How a rank is asked for is one table, [`RANKS`]; how tokens are asked for is [`ask_tokens`].
//!
//! Bytes in, values out: no I/O, no clock, no opinion on what the values are good for. The wire's layout is
//! decided from the bytes themselves, never from an engine's version, because one fleet runs several.
//! Every input is hostile: work and memory are bounded by the size of the input, and anything unreadable
//! is a value that says why.

mod batch;
mod event;
mod fields;
mod frames;
mod gauges;
mod keys;
pub mod llama_cpp;
mod models;
mod msgpack;
mod ports;
mod ranks;
mod salts;
pub mod sglang;
mod stored;
mod streamed;
mod tokens;
pub mod trtllm;
mod usage;
mod version;
pub mod vllm;
mod writer;

pub use batch::{BatchError, EventBatch, decode_batch};
pub use event::{Event, EventError, Lora, Medium, Moved, Removed, SpecKind};
pub use frames::{
    FrameError, Message, Replay, decode_frames, decode_replay, decode_replay_request, live_frames,
    replay_end_frames, replay_frames, replay_request_frames,
};
pub use gauges::{Gauges, Scrape};
pub use models::{Model, ModelsError, encode_models, parse_models};
pub use msgpack::Broken;
pub use ports::{BasePorts, PortsError, computed_endpoints, is_wildcard};
pub use ranks::{
    Carrier, Numbering, OLDEST, RANKS, Report, Row, TooOld, capability, check_version, rank_refusal,
};
pub use salts::{SALT_FIELD, takes_salt};
pub use stored::{FullBlock, NotIndexable, Stored};
pub use tokens::{Ask, Asked, TokenizeError, ask_tokens};
pub use usage::{UsageReader, parse_usage};
pub use version::Version;

/// Request headers by which some engine lets a client choose a rank or carry engine-internal state, in
/// lower case. A proxy that decides the rank itself removes all of them from what a client sends.
pub const CLIENT_RANK_HEADERS: [&str; 3] = [
    // vLLM, and SGLang from 0.5.10 on.
    "x-data-parallel-rank",
    // SGLang with its header overrides switched on.
    "x-override-routed-dp-rank",
    "x-override-disagg-prefill-dp-rank",
];

/// Fields of a request's JSON object by which some engine lets a client choose a rank, for whoever decides the
/// rank itself to remove.
pub const CLIENT_RANK_FIELDS: [&str; 4] = [
    // SGLang from 0.5.10 on, and its name before.
    "routed_dp_rank",
    "data_parallel_rank",
    // SGLang: which rank has prefilled, said to one that decodes.
    "disagg_prefill_dp_rank",
    // llama.cpp.
    "id_slot",
];
