//! A fake vLLM, SGLang or TensorRT-LLM: its HTTP API, KV events and metrics over real sockets, on top of `engine_model`.
//!
//! It computes nothing, yet keeps what a router can notice: a prompt's cost in time, queues, ranks in lock
//! step, prefix caches with evictions, cached tokens in `usage`, events with replay, the rank header and its
//! errors. Text is real enough to hold a conversation: tokens and answers are deterministic, and a second
//! turn's prompt extends the first one's tokens and answer exactly.
//!
//! It can be told to misbehave as engines have done ([`Misbehaviour`]), for those who must notice.
//!
//! Beyond the engines' APIs it has `GET /debug/kv_blocks`: what each rank's cache holds, in the hashes of `domain`,
//! `GET /debug/requests`: the last requests served, which rank was asked for, which ran, and what was cached, and
//! `GET /debug/events`: what became of event messages on their way; `POST /debug/events?cut=1` loses all until `cut=0`.

mod announcer;
mod config;
mod conversations;
mod dialect;
mod drained;
mod driver;
mod gathered;
mod generator;
mod http;
mod journal;
mod line;
mod metrics;
mod misbehaviour;
mod publisher;
mod ranks;
mod sim;
mod sources;
mod tokenizer;

pub use config::{Config, InvalidConfig};
pub use conversations::{Conversations, InvalidConversations, RankSource};
pub use dialect::{Dialect, UnknownDialect};
pub use misbehaviour::{InvalidMisbehaviour, Misbehaviour};
pub use sim::{BindError, EngineSim};

#[cfg(test)]
mod tests;
