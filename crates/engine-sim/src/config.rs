//! Settings of a fake engine.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use domain::{BlockSize, InvalidId, ModelName};
use engine_model::StepTime;
use engine_wire::Version;
use serde::{Deserialize, Serialize};

use crate::conversations::Conversations;
use crate::dialect::Dialect;
use crate::misbehaviour::Misbehaviour;
use crate::ranks::Ranks;

/// What vLLM serves at most without being told otherwise, here: longer than any common client sends.
const DEFAULT_MAX_MODEL_LEN: u32 = 131_072;

/// What a fake engine is and how fast. Times are those of the engine imitated; `speed_up` divides them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which engine it is.
    pub engine: Dialect,
    /// Of which release, such as `0.32.0`; by default the newest that is known.
    pub engine_version: Option<String>,
    /// Where it serves HTTP; port 0 takes a free one. KV events are published on the same host.
    pub listen: SocketAddr,
    /// The model's name.
    pub model: String,
    /// Names of LoRA adapters, served as models of their own over the same weights.
    pub lora_adapters: Vec<String>,
    /// Attention data-parallel ranks.
    pub dp_size: u32,
    /// The first of them, as events, metrics and the rank header number it; of a vLLM that is one node of a
    /// deployment.
    pub start_rank: u32,
    /// Tokens per block, which SGLang calls a page.
    pub block_size: u32,
    /// Blocks of one rank.
    pub kv_blocks: u32,
    /// Requests one rank runs at a time.
    pub max_running: u32,
    /// Tokens one rank computes in one pass.
    pub pass_tokens: u32,
    /// Prompt tokens one rank computes in a second.
    pub prefill_tokens_per_second: f64,
    /// What any pass takes, in milliseconds.
    pub step_base_ms: f64,
    /// What each running request adds to a pass, in milliseconds.
    pub step_per_sequence_ms: f64,
    /// How many times faster than the engine imitated.
    pub speed_up: f64,
    /// The most tokens of one request, prompt and answer; by default 131,072 or what a rank holds.
    pub max_model_len: Option<u32>,
    /// The port of rank 0's event publisher, and with the rank added those of the others; 0 takes free ones.
    /// No events without it.
    pub kv_events_port: Option<u16>,
    /// The same for the replay sockets. No replay without it.
    pub replay_port: Option<u16>,
    /// The topic that events are published under.
    pub kv_events_topic: String,
    /// How many batches a rank keeps for replay.
    pub buffer_steps: u32,
    /// What answers are derived from, besides the prompt.
    pub seed: u64,
    /// What it does wrong.
    pub misbehave: Misbehaviour,
    /// How a TensorRT-LLM keeps conversations; by default it knows of none.
    pub conversations: Option<Conversations>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: Dialect::default(),
            engine_version: None,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            model: "fake-model".to_owned(),
            lora_adapters: Vec::new(),
            dp_size: 1,
            start_rank: 0,
            block_size: 16,
            kv_blocks: 8192,
            max_running: 256,
            pass_tokens: 8192,
            prefill_tokens_per_second: 20_000.0,
            step_base_ms: 8.0,
            step_per_sequence_ms: 0.05,
            speed_up: 1.0,
            max_model_len: None,
            kv_events_port: Some(5557),
            replay_port: Some(5657),
            kv_events_topic: "kv-events".to_owned(),
            buffer_steps: 10_000,
            seed: 0,
            misbehave: Misbehaviour::default(),
            conversations: None,
        }
    }
}

/// A setting that no engine can run with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidConfig {
    /// It must be at least 1.
    #[error("{setting} must be at least 1")]
    Zero {
        /// Which one.
        setting: &'static str,
    },
    /// It is a number outside of what makes sense.
    #[error("{setting} must be between {least} and {most}, not {value}")]
    OutOfRange {
        /// Which one.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// The smallest allowed.
        least: f64,
        /// The largest allowed.
        most: f64,
    },
    /// A rank cannot hold the longest request.
    #[error(
        "max_model_len {asked} is more than the {held} tokens that kv_blocks x block_size hold"
    )]
    ModelLen {
        /// What was asked for.
        asked: u32,
        /// What a rank holds.
        held: u64,
    },
    /// The ports of its ranks end beyond 65,535 or would serve twice.
    #[error(
        "{setting} {port} with {ranks} ranks: set kv_events_port and replay_port further apart or lower"
    )]
    Ports {
        /// Which one.
        setting: &'static str,
        /// Its value.
        port: u16,
        /// How many ranks.
        ranks: u32,
    },
    /// It is no name of a model.
    #[error("model {name:?}")]
    ModelName {
        /// The name.
        name: String,
        /// Why not.
        #[source]
        source: InvalidId,
    },
    /// Replay is of events.
    #[error("replay_port needs kv_events_port")]
    ReplayWithoutEvents,
    /// It is no release.
    #[error("engine_version {version:?} is no release: write one such as 0.32.0")]
    Version {
        /// What was written.
        version: String,
    },
    /// Others count their ranks from 0.
    #[error("start_rank {start_rank} is for vllm: the ranks of {engine} begin at 0")]
    StartRank {
        /// Which engine.
        engine: &'static str,
        /// What was asked for.
        start_rank: u32,
    },
    /// Local and global numbers are the same.
    #[error("misbehave local-ranks needs a start_rank above 0")]
    LocalRanks,
    /// Others keep no conversations.
    #[error("conversations are kept by tensorrt-llm, not by {engine}")]
    Conversations {
        /// Which engine.
        engine: &'static str,
    },
    /// Events are drained when somebody asks.
    #[error(
        "misbehave {kind} needs events that are published, which those of tensorrt-llm are not"
    )]
    NotPublished {
        /// Which misbehaviour.
        kind: &'static str,
    },
}

/// The release that an engine is of.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    /// As it says it.
    pub(crate) name: String,
    /// What decides what it understands.
    pub(crate) version: Version,
}

impl Release {
    /// Whether it is `first` or came after it.
    pub(crate) fn since(&self, first: Version) -> bool {
        self.version >= first
    }
}

/// The parts of a configuration that have been checked.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) release: Release,
    pub(crate) ranks: Ranks,
    pub(crate) engine: engine_model::Config,
    pub(crate) model: ModelName,
    pub(crate) lora_adapters: Vec<ModelName>,
    pub(crate) max_model_len: u32,
}

impl Config {
    /// Checks what can be checked without binding anything.
    pub(crate) fn checked(&self) -> Result<Checked, InvalidConfig> {
        let counts = [
            ("dp_size", self.dp_size),
            ("kv_blocks", self.kv_blocks),
            ("max_running", self.max_running),
            ("pass_tokens", self.pass_tokens),
            ("max_model_len", self.max_model_len.unwrap_or(1)),
        ];
        if let Some((setting, _)) = counts.into_iter().find(|(_, value)| *value == 0) {
            return Err(InvalidConfig::Zero { setting });
        }
        let block_size = BlockSize::new(self.block_size).map_err(|_| InvalidConfig::Zero {
            setting: "block_size",
        })?;
        within("speed_up", self.speed_up, 1e-3, 1e6)?;
        within(
            "prefill_tokens_per_second",
            self.prefill_tokens_per_second,
            1.0,
            1e9,
        )?;
        self.check_ranks()?;
        self.check_ports()?;
        let held = u64::from(self.kv_blocks) * u64::from(self.block_size);
        let default_len = u32::try_from(held)
            .unwrap_or(u32::MAX)
            .min(DEFAULT_MAX_MODEL_LEN);
        let max_model_len = self.max_model_len.unwrap_or(default_len);
        if u64::from(max_model_len) > held {
            return Err(InvalidConfig::ModelLen {
                asked: max_model_len,
                held,
            });
        }
        let step = StepTime {
            base: milliseconds("step_base_ms", self.step_base_ms)?,
            per_prefill_token: Duration::from_secs_f64(1.0 / self.prefill_tokens_per_second),
            per_sequence: milliseconds("step_per_sequence_ms", self.step_per_sequence_ms)?,
        };
        Ok(Checked {
            engine: engine_model::Config {
                block_size,
                kv_blocks: self.kv_blocks,
                max_running: self.max_running,
                pass_tokens: self.pass_tokens,
                step,
                cache: self.engine.cache(),
            },
            release: self.release()?,
            ranks: Ranks {
                start: self.start_rank,
                count: self.dp_size,
            },
            max_model_len,
            model: model_name(&self.model)?,
            lora_adapters: self
                .lora_adapters
                .iter()
                .map(|name| model_name(name))
                .collect::<Result<_, _>>()?,
        })
    }

    fn release(&self) -> Result<Release, InvalidConfig> {
        let name = self.engine_version.as_deref();
        let name = name.unwrap_or_else(|| self.engine.newest()).to_owned();
        match Version::parse(&name) {
            Some(version) => Ok(Release { name, version }),
            None => Err(InvalidConfig::Version { version: name }),
        }
    }

    fn check_ranks(&self) -> Result<(), InvalidConfig> {
        let engine = self.engine.name();
        if self.start_rank > 0 && self.engine != Dialect::Vllm {
            let start_rank = self.start_rank;
            return Err(InvalidConfig::StartRank { engine, start_rank });
        }
        if self.conversations.is_some() && self.engine != Dialect::TensorRtLlm {
            return Err(InvalidConfig::Conversations { engine });
        }
        if let Some(kind) = self.misbehave.needs_publishers()
            && self.engine == Dialect::TensorRtLlm
        {
            return Err(InvalidConfig::NotPublished { kind });
        }
        if self.start_rank == 0 && self.misbehave.local_ranks {
            return Err(InvalidConfig::LocalRanks);
        }
        Ok(())
    }

    fn check_ports(&self) -> Result<(), InvalidConfig> {
        let (events, replay) = (self.kv_events_port, self.replay_port);
        if replay.is_some() && events.is_none() {
            return Err(InvalidConfig::ReplayWithoutEvents);
        }
        let last_rank = u64::from(self.start_rank) + u64::from(self.dp_size) - 1;
        let last = |port: u16| u64::from(port) + last_rank;
        for (setting, port) in [("kv_events_port", events), ("replay_port", replay)] {
            if let Some(port) = port.filter(|port| *port > 0 && last(*port) > u64::from(u16::MAX)) {
                return Err(InvalidConfig::Ports {
                    setting,
                    port,
                    ranks: self.dp_size,
                });
            }
        }
        match (events, replay) {
            (Some(events), Some(replay))
                if events > 0
                    && replay > 0
                    && u32::from(events.abs_diff(replay)) < self.dp_size =>
            {
                Err(InvalidConfig::Ports {
                    setting: "replay_port",
                    port: replay,
                    ranks: self.dp_size,
                })
            }
            _ => Ok(()),
        }
    }
}

fn model_name(name: &str) -> Result<ModelName, InvalidConfig> {
    ModelName::new(name).map_err(|source| InvalidConfig::ModelName {
        name: name.to_owned(),
        source,
    })
}

/// Keeps every duration derived from `value` within what a `Duration` and an `Instant` hold.
fn within(setting: &'static str, value: f64, least: f64, most: f64) -> Result<(), InvalidConfig> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(InvalidConfig::OutOfRange {
        setting,
        value,
        least,
        most,
    })
}

fn milliseconds(setting: &'static str, value: f64) -> Result<Duration, InvalidConfig> {
    within(setting, value, 0.0, 1e6)?;
    Ok(Duration::from_secs_f64(value / 1e3))
}
