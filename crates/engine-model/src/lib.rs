//! A model of one inference engine: attention data-parallel ranks in lock step, each with a private prefix
//! cache. Pure: time is passed in, and a pass lasts what the configuration says.
//!
//! What it keeps of vLLM's scheduler, because routers notice it:
//! - One pass of all ranks takes as long as its slowest rank; prompts are prefilled in chunks under a token
//!   budget per rank and pass; running requests go before waiting ones, which wait in arrival order.
//! - A rank's cache is a pool of physical blocks. Blocks of running requests are pinned; the others leave in
//!   the order of their last use, a request's last block first, so a parent outlives its children.
//! - A hit covers at most the prompt less one token, in full blocks.
//! - The same content can lie in two blocks (two prefills at once, or the last block of a repeated prompt):
//!   each copy is announced when it is filled and again when it leaves.
//! - Blocks are announced at the end of the pass that filled them, evictions with the pass that needed the
//!   room, and a cleared cache with the next pass of its rank.
//!
//! With [`Cache::Radix`] the last two are SGLang's: a content lies in one block, blocks of an answer are
//! announced with its last token, and a cleared cache at once.
//!
//! Apart from the ranks, [`ConversationRouter`] places requests as a TensorRT-LLM that keeps conversations does.
//!
//! What it leaves out: sampling, token ids, groups of layers, host tiers, and the wire.

mod config;
mod conversations;
mod effect;
mod engine;
mod pool;
mod rank;
mod request;

pub use config::{Cache, Config, StepTime};
pub use conversations::{Active, Beginning, ConversationRouter, ConversationRules, Turn};
pub use effect::{Effect, Pass};
pub use engine::{Engine, InvalidEngine, RankInUse, RankPasses};
pub use rank::RankStatus;
pub use request::{Refused, Request, RequestId};

#[cfg(test)]
mod tests;
