//! The adapter against engines that say of themselves whatever a test wants.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod first_rank;
mod fleet;
mod hanging;
mod identity;
mod llama_cpp;
mod probing;
mod running;
mod settings;
mod sglang;
mod stub;
mod tensorrt_llm;
