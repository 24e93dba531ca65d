//! The fake engine's promises, over real sockets.

mod client;
mod endpoints;
mod events;
mod misbehave;
mod sglang;
mod surface;
mod tensorrt_llm;
