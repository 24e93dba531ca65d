//! How large and how fast an engine is.

use std::time::Duration;

use domain::BlockSize;

/// The size and speed of each rank of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Blocks one rank can hold.
    pub kv_blocks: u32,
    /// Requests one rank runs at the same time; the others wait.
    pub max_running: u32,
    /// Tokens one rank computes in one pass, prompt and output together.
    pub pass_tokens: u32,
    /// How long a pass takes.
    pub step: StepTime,
    /// How its cache keeps and announces what is computed.
    pub cache: Cache,
}

/// How a rank's cache keeps and announces what is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// vLLM's: each block is announced when it is full, whether the same content lies elsewhere or not; a
    /// cleared cache is announced with the next pass.
    #[default]
    Blocks,
    /// SGLang's radix tree: a content lies in one block only; the answer's blocks are announced when the
    /// request ends; a cleared cache is announced at once.
    Radix,
}

/// How long one rank needs for one pass: `base + prefill tokens x per_prefill_token + sequences x
/// per_sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Whatever there is to compute.
    pub base: Duration,
    /// For each prompt token computed.
    pub per_prefill_token: Duration,
    /// For each request that computes anything.
    pub per_sequence: Duration,
}

impl StepTime {
    /// The time of a pass over `prefill_tokens` prompt tokens and `sequences` requests.
    pub fn of(&self, prefill_tokens: u64, sequences: u64) -> Duration {
        let each = |duration: Duration, count: u64| {
            let nanos = duration.as_nanos().saturating_mul(u128::from(count));
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        };
        self.base
            .saturating_add(each(self.per_prefill_token, prefill_tokens))
            .saturating_add(each(self.per_sequence, sequences))
    }
}
