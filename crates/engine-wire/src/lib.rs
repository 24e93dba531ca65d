//! What inference engines say and hear: KV-cache events of vLLM, SGLang and TensorRT-LLM decoded into one
//! vocabulary, and the HTTP dialects of [`vllm`] and [`sglang`], both decoded and encoded. A fake engine speaks
//! with `encode_*` and `BatchEncoder` of either.
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
mod models;
mod msgpack;
mod ports;
pub mod sglang;
mod stored;
mod streamed;
pub mod trtllm;
mod usage;
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
pub use ports::{BasePorts, PortsError, computed_endpoints};
pub use stored::{FullBlock, NotIndexable, Stored};
pub use usage::{encode_usage, parse_usage};

/// Request headers by which some engine lets a client choose a rank or carry engine-internal state, in
/// lower case. A proxy that decides the rank itself removes all of them from what a client sends.
pub const CLIENT_RANK_HEADERS: [&str; 3] = [
    // vLLM, and SGLang from 0.5.10 on.
    "x-data-parallel-rank",
    // SGLang with its header overrides switched on.
    "x-override-routed-dp-rank",
    "x-override-disagg-prefill-dp-rank",
];
