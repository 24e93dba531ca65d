//! What an operator says of the engines, checked as it is read.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use domain::{BlockSize, EngineKind, HeaderSpace, InvalidId, MAX_RANKS, ModelName, WorkerId};
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::address::{EngineUrl, EventsAt, ZmqBase};

/// For an answer that is not streamed and 50,000 tokens long, or a prompt of a million behind others. An engine that
/// takes longer than that has forgotten the request, though it answers its watcher.
const FIRST_BYTE: Duration = Duration::from_secs(1_800);

/// The adapter's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The engines it speaks to.
    pub workers: Vec<WorkerConfig>,
}

/// One engine. What is left out is asked of the engine itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerConfig {
    /// Where its HTTP API is, as `http://host:port`.
    pub url: EngineUrl,
    /// Its name; `host:port` of the URL when left out.
    #[serde(default, deserialize_with = "worker_id", serialize_with = "text")]
    pub id: Option<WorkerId>,
    /// Which engine it is; found out by asking it when left out.
    #[serde(default)]
    pub engine: Option<EngineName>,
    /// The model it serves; the first that it lists when left out.
    #[serde(default, deserialize_with = "model_name", serialize_with = "text")]
    pub model: Option<ModelName>,
    /// How many attention-DP ranks it has.
    #[serde(default)]
    pub dp_size: Option<u32>,
    /// Its first rank, as its events number it.
    #[serde(default)]
    pub start_rank: Option<u32>,
    /// Tokens per KV-cache block: of vLLM its own; of SGLang any multiple of its page, the smallest of at least 16
    /// when left out; of llama.cpp any, 32 when left out.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// How its front end numbers the ranks in `X-data-parallel-rank`.
    #[serde(default)]
    pub header_space: Option<HeaderSpaceName>,
    /// Where rank 0 publishes KV events, as `tcp://host:port`; rank r is at port + r. Of a TensorRT-LLM also
    /// `http://host:port`, the server whose `/kv_cache_events` gives them.
    #[serde(default)]
    pub kv_events: Option<EventsAt>,
    /// Where rank 0 replays KV events; rank r is at port + r.
    #[serde(default)]
    pub kv_replay: Option<ZmqBase>,
    /// Blocks that one rank can hold.
    #[serde(default)]
    pub kv_blocks: Option<u64>,
    /// Seconds that it may take from a request to the first byte of its answer, 1800 when left out. The first byte of an
    /// answer that is not streamed comes when all of it is generated.
    #[serde(default)]
    pub first_byte_seconds: Option<u32>,
    /// Whether its engine keeps conversations on ranks by itself: only of a trtllm-serve, which does not say.
    #[serde(default)]
    pub owns_bindings: Option<bool>,
}

/// The engines that are spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineName {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    LlamaCpp,
    /// TensorRT-LLM, behind trtllm-serve or the worker in `deploy/trtllm`.
    #[serde(rename = "tensorrt-llm")]
    TensorRtLlm,
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::LlamaCpp => "llama.cpp",
            Self::TensorRtLlm => "TensorRT-LLM",
        })
    }
}

impl From<EngineName> for EngineKind {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Vllm => Self::Vllm,
            EngineName::Sglang => Self::Sglang,
            EngineName::LlamaCpp => Self::LlamaCpp,
            EngineName::TensorRtLlm => Self::TensorRtLlm,
        }
    }
}

/// How a front end numbers ranks; see [`HeaderSpace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeaderSpaceName {
    /// It takes no rank.
    None,
    /// From 0 on each node.
    Local,
    /// As in its events.
    Global,
}

impl From<HeaderSpaceName> for HeaderSpace {
    fn from(name: HeaderSpaceName) -> Self {
        match name {
            HeaderSpaceName::None => Self::None,
            HeaderSpaceName::Local => Self::Local,
            HeaderSpaceName::Global => Self::Global,
        }
    }
}

impl WorkerConfig {
    /// The engine at `url`, everything else asked of it.
    pub fn at(url: EngineUrl) -> Self {
        Self {
            url,
            id: None,
            engine: None,
            model: None,
            dp_size: None,
            start_rank: None,
            block_size: None,
            header_space: None,
            kv_events: None,
            kv_replay: None,
            kv_blocks: None,
            first_byte_seconds: None,
            owns_bindings: None,
        }
    }

    /// Its name in the fleet.
    pub fn worker_id(&self) -> Result<WorkerId, ConfigError> {
        if let Some(id) = &self.id {
            return Ok(id.clone());
        }
        WorkerId::new(&self.url.authority()).map_err(|source| ConfigError::Id {
            url: self.url.clone(),
            source,
        })
    }

    /// How long it may take from a request to the first byte of its answer.
    pub(crate) fn first_byte(&self) -> Duration {
        let seconds = self.first_byte_seconds.map(u64::from);
        seconds.map_or(FIRST_BYTE, Duration::from_secs)
    }

    fn check(&self, id: &WorkerId) -> Result<(), ConfigError> {
        let counts = [
            ("dp_size", self.dp_size),
            ("block_size", self.block_size),
            ("first_byte_seconds", self.first_byte_seconds),
        ];
        for (key, value) in counts {
            if value == Some(0) {
                let id = id.clone();
                return Err(ConfigError::Zero { id, key });
            }
        }
        if let Some(tokens) = self.block_size.filter(|it| BlockSize::MAX < *it) {
            let id = id.clone();
            return Err(ConfigError::BlockTooLarge { id, tokens });
        }
        self.check_engine(id)?;
        self.check_ranks(id)?;
        self.check_ports(id)
    }

    /// Whether its engine, where it is said, has all that is said of it.
    fn check_engine(&self, id: &WorkerId) -> Result<(), ConfigError> {
        use EngineName::{LlamaCpp, Sglang, Vllm};
        let Some(engine) = self.engine else {
            return Ok(());
        };
        let start_rank = self.start_rank.is_some_and(|it| it != 0);
        let without: [(_, _, &[EngineName]); 4] = [
            ("start_rank", start_rank, &[Sglang, LlamaCpp]),
            ("kv_events", self.kv_events.is_some(), &[LlamaCpp]),
            ("header_space", self.header_space.is_some(), &[LlamaCpp]),
            (
                "owns_bindings",
                self.owns_bindings.is_some(),
                &[Vllm, Sglang, LlamaCpp],
            ),
        ];
        let mut without = without.into_iter();
        match without.find(|(_, said, engines)| *said && engines.contains(&engine)) {
            Some((key, ..)) => {
                let id = id.clone();
                Err(ConfigError::Without { id, key, engine })
            }
            None => Ok(()),
        }
    }

    fn check_ranks(&self, id: &WorkerId) -> Result<(), ConfigError> {
        let (start, size) = (self.start_rank.unwrap_or(0), self.dp_size.unwrap_or(1));
        let id = id.clone();
        if MAX_RANKS < size {
            return Err(ConfigError::TooManyRanks { id, size });
        }
        match start.checked_add(size) {
            Some(_) => Ok(()),
            None => Err(ConfigError::Ranks { id, start, size }),
        }
    }

    fn check_ports(&self, id: &WorkerId) -> Result<(), ConfigError> {
        let ranks = self.dp_size.unwrap_or(1);
        let last = self.start_rank.unwrap_or(0) + (ranks - 1);
        let events = match &self.kv_events {
            Some(EventsAt::Published(events)) => Some(events),
            Some(EventsAt::Drained(_)) | None => None,
        };
        if self.kv_events.is_none() && self.kv_replay.is_some() {
            return Err(ConfigError::NoEvents { id: id.clone() });
        }
        let bases = [
            ("kv_events", events),
            ("kv_replay", self.kv_replay.as_ref()),
        ];
        for (key, base) in bases {
            if let Some(base) = base
                && u32::from(u16::MAX - base.port()) < last
            {
                return Err(ConfigError::BeyondLast {
                    id: id.clone(),
                    key,
                    port: base.port(),
                    last,
                });
            }
        }
        if let (Some(events), Some(replay)) = (events, &self.kv_replay) {
            let one_host = events.host(&self.url) == replay.host(&self.url);
            if one_host && u32::from(events.port().abs_diff(replay.port())) < ranks {
                let id = id.clone();
                return Err(ConfigError::Overlap { id, ranks });
            }
        }
        Ok(())
    }
}

impl Config {
    /// The workers by name. Fails when two have the same, or one has none, or what is said of one cannot be.
    pub fn named(self) -> Result<Vec<(WorkerId, WorkerConfig)>, ConfigError> {
        let mut ids = BTreeSet::new();
        self.workers
            .into_iter()
            .map(|worker| {
                let id = worker.worker_id()?;
                if !ids.insert(id.clone()) {
                    return Err(ConfigError::Duplicate { id });
                }
                worker.check(&id)?;
                Ok((id, worker))
            })
            .collect()
    }
}

/// Why the settings make no sense together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Two workers of one name.
    #[error("two workers are named {id}: set a different `id` for each")]
    Duplicate {
        /// The name.
        id: WorkerId,
    },
    /// A number that cannot be zero.
    #[error("worker {id} has {key} = 0: say how many, or leave it out to ask the engine")]
    Zero {
        /// The worker.
        id: WorkerId,
        /// The setting.
        key: &'static str,
    },
    /// Events and replay of different ranks at one port.
    #[error(
        "the ports of kv_events and kv_replay of worker {id} overlap: each takes {ranks} from its own on"
    )]
    Overlap {
        /// The worker.
        id: WorkerId,
        /// How many ranks it has.
        ranks: u32,
    },
    /// Something that its engine does not have.
    #[error("worker {id} has {key}, which {engine} does not: leave it out")]
    Without {
        /// The worker.
        id: WorkerId,
        /// The setting.
        key: &'static str,
        /// The engine.
        engine: EngineName,
    },
    /// More ranks than any engine has.
    #[error("worker {id} has dp_size = {size}: no engine has more than {MAX_RANKS} ranks")]
    TooManyRanks {
        /// The worker.
        id: WorkerId,
        /// How many.
        size: u32,
    },
    /// Blocks larger than any engine's.
    #[error(
        "worker {id} has block_size = {tokens}: a block has 1 to {} tokens",
        BlockSize::MAX
    )]
    BlockTooLarge {
        /// The worker.
        id: WorkerId,
        /// How large, in tokens.
        tokens: u32,
    },
    /// Ranks that have no numbers.
    #[error("worker {id} has {size} ranks from {start} on: correct `start_rank` or `dp_size`")]
    Ranks {
        /// The worker.
        id: WorkerId,
        /// The first.
        start: u32,
        /// How many.
        size: u32,
    },
    /// A place for replay and none for events.
    #[error(
        "worker {id} has kv_replay and no kv_events: set both, or leave them out to ask the engine"
    )]
    NoEvents {
        /// The worker.
        id: WorkerId,
    },
    /// A rank's port that does not exist.
    #[error("worker {id} has {key} at port {port}: that of rank {last} would be beyond 65535")]
    BeyondLast {
        /// The worker.
        id: WorkerId,
        /// The setting.
        key: &'static str,
        /// Rank 0's port.
        port: u16,
        /// Its last rank.
        last: u32,
    },
    /// The URL gives no name.
    #[error("no worker id can be made of {url}: set `id`")]
    Id {
        /// The URL.
        url: EngineUrl,
        /// What is wrong with its authority.
        #[source]
        source: InvalidId,
    },
}

fn worker_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WorkerId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let id = text.as_deref().map(WorkerId::new);
    id.transpose().map_err(de::Error::custom)
}

fn model_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ModelName>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let id = text.as_deref().map(ModelName::new);
    id.transpose().map_err(de::Error::custom)
}

fn text<S: Serializer>(value: &Option<impl ToString>, serializer: S) -> Result<S::Ok, S::Error> {
    value
        .as_ref()
        .map(ToString::to_string)
        .serialize(serializer)
}
