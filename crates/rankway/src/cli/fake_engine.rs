//! The flags of `rankway fake-engine`.

use std::net::SocketAddr;

use clap::Args;
use engine_sim::{Conversations, Dialect, Misbehaviour};

use super::values::{address, number, whole};
use super::{BLOCK_TOKENS, RANK_BLOCKS, SPEED_UP};

/// The last rank that a deployment can begin a node with.
const MAX_START_RANK: u64 = 4095;

#[derive(Args)]
#[command(after_help = "\
Speaks the engine's HTTP API and publishes its KV events; the answers are gibberish that depends
only on the prompt and the seed.

--misbehave makes it break its promises as engines have done, to see whether Rankway notices.
Several, with commas between them:
  ignore-rank             take a rank on any endpoint, say nothing, and balance instead
  ignore-rank=ENDPOINT    the same on chat, completions, responses or messages only; more
                          endpoints may follow: ignore-rank=completions,messages
  local-ranks             read the rank as counted from 0 on this node, though events and
                          metrics count from --start-rank on
  only-rank-0-publishes   the other ranks cache and stay silent
  restart-after=N         after N requests, once idle: forget the caches and count events from
                          0 again without a word, connections stay open
  publish-late=MILLIS     publish events that long after they happened
  lossy-events            lose one event message in a hundred on the way, have others overtaken by
                          up to 16, or come twice
  lossy-replays           lose one request for a replay in twenty

A tensorrt-llm is one behind the worker of deploy/trtllm: chat and text completions, a rank in
X-Data-Parallel-Rank, and no event ports, since whoever wants its events asks for them.
--conversation-affinity has it keep conversations, and takes, behind engine or router, how it
differs from today's engine:
  forgets-first-ranks     follow the rank of a first turn without keeping it, as TensorRT-LLM did
                          before its pull request 16815
  unsaid                  keep it and not say so: Rankway finds it out by turns of its own
  max-sessions=N          forget the conversation that is longest unused beyond N

Rankway says what it found in /readyz and in rankway_rank_faults_total on its admin address.")]
pub(crate) struct FakeEngineArgs {
    /// Engine to speak as: vllm, sglang or tensorrt-llm
    #[arg(long, default_value = "vllm", env = "RANKWAY_FAKE_ENGINE")]
    pub(crate) engine: Dialect,
    /// Release to speak as, such as 0.32.0 [default: the newest known]
    #[arg(long, value_name = "VERSION", env = "RANKWAY_FAKE_ENGINE_VERSION")]
    pub(crate) engine_version: Option<String>,
    /// Address of the HTTP API; port 0 takes a free one
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8000",
        env = "RANKWAY_FAKE_LISTEN",
        value_parser = address
    )]
    pub(crate) listen: SocketAddr,
    /// Name of the model
    #[arg(long, default_value = "fake-model", env = "RANKWAY_FAKE_MODEL")]
    pub(crate) model: String,
    /// Attention-DP ranks
    #[arg(
        long,
        default_value_t = 4,
        env = "RANKWAY_FAKE_DP",
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=256)
    )]
    pub(crate) dp: u32,
    /// First rank, as one node of a larger vLLM deployment has it
    #[arg(
        long,
        value_name = "RANK",
        default_value_t = 0,
        env = "RANKWAY_FAKE_START_RANK",
        allow_negative_numbers = true,
        value_parser = whole::<u32>(0..=MAX_START_RANK)
    )]
    pub(crate) start_rank: u32,
    /// Tokens per KV-cache block; SGLang says page
    #[arg(
        long,
        visible_alias = "page-size",
        default_value_t = 16,
        env = "RANKWAY_FAKE_BLOCK_SIZE",
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=BLOCK_TOKENS)
    )]
    pub(crate) block_size: u32,
    /// KV-cache blocks of each rank
    #[arg(
        long,
        default_value_t = 8192,
        env = "RANKWAY_FAKE_KV_BLOCKS",
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=RANK_BLOCKS)
    )]
    pub(crate) kv_blocks: u32,
    /// The most tokens of a prompt and its answer [default: 131072, or what the blocks hold where that is less]
    #[arg(
        long,
        env = "RANKWAY_FAKE_MAX_MODEL_LEN",
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=10_000_000)
    )]
    pub(crate) max_model_len: Option<u32>,
    /// Port on which rank 0 publishes KV events, rank r on port + r; 0 takes free ones
    #[arg(
        long,
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = whole::<u16>(0..=65_535),
        env = "RANKWAY_FAKE_KV_EVENTS_PORT"
    )]
    pub(crate) kv_events_port: u16,
    /// Port on which rank 0 replays KV events, rank r on port + r; 0 takes free ones
    #[arg(
        long,
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = whole::<u16>(0..=65_535),
        env = "RANKWAY_FAKE_REPLAY_PORT"
    )]
    pub(crate) replay_port: u16,
    /// Publish no KV events
    #[arg(long, env = "RANKWAY_FAKE_NO_EVENTS")]
    pub(crate) no_events: bool,
    /// How a tensorrt-llm keeps conversations: engine or router, whoever chooses first ranks; see below [default: not]
    #[arg(
        long,
        value_name = "SOURCE,...",
        env = "RANKWAY_FAKE_CONVERSATION_AFFINITY"
    )]
    pub(crate) conversation_affinity: Option<Conversations>,
    /// What to do wrong, such as ignore-rank=completions,publish-late=2000; see below [default: nothing]
    #[arg(long, value_name = "KIND,...", env = "RANKWAY_FAKE_MISBEHAVE")]
    pub(crate) misbehave: Option<Misbehaviour>,
    /// Prompt tokens that one rank computes in a second
    #[arg(
        long,
        default_value_t = 20_000,
        allow_negative_numbers = true,
        value_parser = whole::<u32>(1..=u32::MAX.into()),
        env = "RANKWAY_FAKE_PREFILL_RATE"
    )]
    pub(crate) prefill_rate: u32,
    /// How many times faster than that time passes
    #[arg(
        long,
        default_value_t = 1.0,
        allow_negative_numbers = true,
        value_parser = number(SPEED_UP),
        env = "RANKWAY_FAKE_SPEED_UP"
    )]
    pub(crate) speed_up: f64,
    /// Seed of the answers
    #[arg(
        long,
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = whole::<u64>(0..=u64::MAX),
        env = "RANKWAY_FAKE_SEED"
    )]
    pub(crate) seed: u64,
}
