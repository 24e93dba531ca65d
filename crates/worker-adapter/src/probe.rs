//! Finds out what an engine is. What it does not say, the settings must; what both say must agree.

use bytes::Bytes;
use domain::{
    BlockSize, Capability, DpRank, EngineKind, Epoch, HeaderSpace, KvEndpoints, ModelName,
    RankControl, RankEndpoint, TargetState, Timestamp, Worker, WorkerId,
};
use engine_wire::vllm;
use serde::Deserialize;

use crate::address::EngineUrl;
use crate::client::{Answer, BoxError, EngineClient};
use crate::config::{ConfigError, EngineName, WorkerConfig};

/// Why an engine cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The settings give it no name.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nobody answers there.
    #[error("no engine answers at {url}: start it, or correct `url`")]
    Unreachable {
        /// Where.
        url: EngineUrl,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// It has stopped being healthy.
    #[error("worker {worker} is not healthy any more")]
    Unhealthy {
        /// Which worker.
        worker: WorkerId,
    },
    /// It answers something else than vLLM does.
    #[error("{url}{path} answers {status}: is vLLM's HTTP API there?")]
    Status {
        /// Whose answer.
        url: EngineUrl,
        /// The path asked for.
        path: &'static str,
        /// The HTTP status.
        status: u16,
    },
    /// It answers what vLLM does not.
    #[error("{url}{path} answers what vLLM does not")]
    Answer {
        /// Whose answer.
        url: EngineUrl,
        /// The path asked for.
        path: &'static str,
        /// What is wrong with it.
        #[source]
        source: BoxError,
    },
    /// Neither the engine nor the settings say it.
    #[error("worker {worker} does not say its {what}: set `{key}`")]
    Missing {
        /// Which worker.
        worker: WorkerId,
        /// What is not known.
        what: &'static str,
        /// The key to set.
        key: &'static str,
    },
    /// The engine says one thing, the settings another; or the settings cannot be.
    #[error("worker {worker} has {found}: correct `{key}`")]
    Mismatch {
        /// Which worker.
        worker: WorkerId,
        /// What there is.
        found: String,
        /// The key to correct.
        key: &'static str,
    },
}

/// Asks the engine of `config` what it is. The answer is [`TargetState::Warming`] while it is not healthy
/// yet; its epoch and lease are not known here.
pub async fn probe(config: &WorkerConfig) -> Result<Worker, ProbeError> {
    probe_with(&EngineClient::new(), config).await
}

pub(crate) async fn probe_with(
    client: &EngineClient,
    config: &WorkerConfig,
) -> Result<Worker, ProbeError> {
    let found = Found::ask(client, config).await?;
    let EngineName::Vllm = config.engine;
    describe(config, found)
}

/// The engine's gauges.
pub(crate) async fn ask_metrics(
    client: &EngineClient,
    config: &WorkerConfig,
) -> Result<vllm::Scrape, ProbeError> {
    let body = require(client, &config.url, "/metrics").await?;
    let text = std::str::from_utf8(&body);
    let text = text.map_err(|source| strange(&config.url, "/metrics", source))?;
    Ok(vllm::parse_metrics(text))
}

/// What the engine says of itself.
struct Found {
    healthy: bool,
    models: Vec<vllm::Model>,
    version: String,
    metrics: vllm::Scrape,
    /// Where each rank publishes, as far as the engine can say.
    endpoints: Vec<RankEndpoint>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

impl Found {
    async fn ask(client: &EngineClient, config: &WorkerConfig) -> Result<Self, ProbeError> {
        let url = &config.url;
        let health = ask(client, url, "/health").await?;
        let models = require(client, url, "/v1/models").await?;
        let models = vllm::parse_models(&models);
        let models = models.map_err(|source| strange(url, "/v1/models", source))?;
        let version = optional(client, url, "/version").await?;
        let version = version.and_then(|body| serde_json::from_slice::<Version>(&body).ok());
        let metrics = ask_metrics(client, config).await?;
        const SOURCES: &str = "/kv_event_sources";
        let endpoints = match optional(client, url, SOURCES).await? {
            None => Vec::new(),
            Some(body) => {
                let endpoints = vllm::parse_kv_event_sources(&body, url.host());
                endpoints.map_err(|source| strange(url, SOURCES, source))?
            }
        };
        Ok(Self {
            healthy: health.status == 200,
            models,
            version: version.map(|it| it.version).unwrap_or_default(),
            metrics,
            endpoints,
        })
    }

    /// Tokens per block and blocks of a rank, which are the same for all ranks.
    fn cache(&self) -> (Option<BlockSize>, Option<u64>) {
        let gauges = self.metrics.ranks.values();
        let sizes = gauges.clone().find_map(|it| it.block_size);
        (sizes, gauges.filter_map(|it| it.kv_blocks).min())
    }
}

/// Puts together what was found and what was set.
fn describe(config: &WorkerConfig, found: Found) -> Result<Worker, ProbeError> {
    let id = config.worker_id()?;
    let missing = |what, key| ProbeError::Missing {
        worker: id.clone(),
        what,
        key,
    };
    let model = model_of(&id, config, &found.models)?;
    let (start_rank, dp_size) = ranks_of(&id, config, &found)?;
    let (found_size, found_blocks) = found.cache();
    let tokens = found_size.map(BlockSize::get);
    let tokens = agreed(&id, config.block_size, tokens, "block_size")?;
    let tokens = tokens.ok_or_else(|| missing("block size", "block_size"))?;
    let block_size = BlockSize::new(tokens).map_err(|_| missing("block size", "block_size"))?;
    let header_space = header_space_of(&id, config, start_rank, dp_size)?;
    let rank_control = match (header_space, dp_size) {
        // The only rank is the one that runs.
        (HeaderSpace::None, 1) | (HeaderSpace::Local | HeaderSpace::Global, _) => {
            RankControl::Strict
        }
        (HeaderSpace::None, _) => RankControl::None,
    };
    Ok(Worker {
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: found.version,
        model,
        start_rank,
        dp_size,
        block_size,
        page_size: block_size,
        kv_blocks: config.kv_blocks.or(found_blocks),
        capability: Capability::uniform(rank_control, header_space),
        state: match found.healthy {
            true => TargetState::Ready,
            false => TargetState::Warming,
        },
        url: config.url.to_string(),
        kv_endpoints: endpoints_of(
            &id,
            config,
            start_rank..start_rank + dp_size,
            found.endpoints,
        )?,
        lease_until: Timestamp::ZERO,
        id,
    })
}

fn model_of(
    id: &WorkerId,
    config: &WorkerConfig,
    listed: &[vllm::Model],
) -> Result<ModelName, ProbeError> {
    let names = || listed.iter().map(|it| it.name.as_str());
    match &config.model {
        Some(model) if listed.iter().any(|it| it.name == *model) => Ok(model.clone()),
        Some(model) => Err(ProbeError::Mismatch {
            worker: id.clone(),
            found: format!(
                "no model {model}, only {}",
                names().collect::<Vec<_>>().join(", ")
            ),
            key: "model",
        }),
        // An adapter is listed like a model, with the model it adapts.
        None => match listed.iter().find(|it| it.parent.is_none()) {
            Some(model) => Ok(model.name.clone()),
            None => Err(ProbeError::Missing {
                worker: id.clone(),
                what: "model",
                key: "model",
            }),
        },
    }
}

/// The first rank and how many there are. The ranks that publish events are all there are; the ranks
/// that have gauges are those of the front end that was asked.
fn ranks_of(id: &WorkerId, config: &WorkerConfig, found: &Found) -> Result<(u32, u32), ProbeError> {
    let publishing = found.endpoints.iter().map(|it| it.dp_rank.get());
    let mut ranks: Vec<u32> = publishing.collect();
    if ranks.is_empty() {
        ranks = found.metrics.ranks.keys().map(|it| it.get()).collect();
    }
    ranks.sort_unstable();
    let first = ranks.first().copied();
    let count = u32::try_from(ranks.len()).ok().filter(|count| *count != 0);
    let contiguous = ranks
        .windows(2)
        .all(|pair| pair[0].checked_add(1) == Some(pair[1]));
    if !contiguous {
        return Err(ProbeError::Mismatch {
            worker: id.clone(),
            found: format!("ranks {ranks:?}, which are not consecutive"),
            key: "url",
        });
    }
    let start = agreed(id, config.start_rank, first, "start_rank")?.unwrap_or(0);
    let size =
        agreed(id, config.dp_size, count, "dp_size")?.ok_or_else(|| ProbeError::Missing {
            worker: id.clone(),
            what: "number of ranks",
            key: "dp_size",
        })?;
    match start.checked_add(size) {
        Some(_) if size != 0 => Ok((start, size)),
        _ => Err(ProbeError::Mismatch {
            worker: id.clone(),
            found: format!("{size} ranks from {start} on"),
            key: "dp_size",
        }),
    }
}

fn header_space_of(
    id: &WorkerId,
    config: &WorkerConfig,
    start_rank: u32,
    dp_size: u32,
) -> Result<HeaderSpace, ProbeError> {
    match config.header_space {
        Some(name) => Ok(name.into()),
        None if dp_size == 1 => Ok(HeaderSpace::None),
        None if start_rank == 0 => Ok(HeaderSpace::Global),
        // vLLM's Python front end counts from 0 here, its Rust front end does not: a guess would send
        // every request to the wrong rank.
        None => Err(ProbeError::Missing {
            worker: id.clone(),
            what: "rank numbering (its first rank is not 0; Python front end: \"local\", Rust: \"global\")",
            key: "header_space",
        }),
    }
}

fn endpoints_of(
    id: &WorkerId,
    config: &WorkerConfig,
    ranks: std::ops::Range<u32>,
    found: Vec<RankEndpoint>,
) -> Result<KvEndpoints, ProbeError> {
    let mismatch = |found: String, key| ProbeError::Mismatch {
        worker: id.clone(),
        found,
        key,
    };
    let endpoints = match (&config.kv_events, &config.kv_replay) {
        (None, None) => found,
        (None, Some(_)) => {
            let found = "a place for replay and none for events".to_owned();
            return Err(mismatch(found, "kv_events"));
        }
        (Some(events), replay) => {
            let host = events.host(&config.url);
            if replay
                .as_ref()
                .is_some_and(|it| it.host(&config.url) != host)
            {
                let found = "replay on another host than its events".to_owned();
                return Err(mismatch(found, "kv_replay"));
            }
            let base = vllm::BasePorts {
                host,
                publish: events.port(),
                replay: replay.as_ref().map(|it| it.port()),
                topic: "",
            };
            vllm::computed_endpoints(base, ranks.map(DpRank::new))
                .map_err(|error| mismatch(format!("no such event ports ({error})"), "kv_events"))?
        }
    };
    Ok(match endpoints.is_empty() {
        true => KvEndpoints::None,
        false => KvEndpoints::Zmq(endpoints),
    })
}

/// What was set and what was found, which must not differ.
fn agreed(
    id: &WorkerId,
    set: Option<u32>,
    found: Option<u32>,
    key: &'static str,
) -> Result<Option<u32>, ProbeError> {
    match (set, found) {
        (Some(set), Some(found)) if set != found => Err(ProbeError::Mismatch {
            worker: id.clone(),
            found: format!("{key} {found}, not {set}"),
            key,
        }),
        (set, found) => Ok(set.or(found)),
    }
}

async fn ask(
    client: &EngineClient,
    url: &EngineUrl,
    path: &'static str,
) -> Result<Answer, ProbeError> {
    let asked = client.ask(url, path).await;
    asked.map_err(|source| ProbeError::Unreachable {
        url: url.clone(),
        source,
    })
}

/// The body of an answer that every vLLM gives.
async fn require(
    client: &EngineClient,
    url: &EngineUrl,
    path: &'static str,
) -> Result<Bytes, ProbeError> {
    let answer = ask(client, url, path).await?;
    match answer.status {
        200 => Ok(answer.body),
        status => Err(ProbeError::Status {
            url: url.clone(),
            path,
            status,
        }),
    }
}

/// The body of an answer that some versions of vLLM do not give.
async fn optional(
    client: &EngineClient,
    url: &EngineUrl,
    path: &'static str,
) -> Result<Option<Bytes>, ProbeError> {
    let answer = ask(client, url, path).await?;
    Ok((answer.status == 200).then_some(answer.body))
}

fn strange(url: &EngineUrl, path: &'static str, source: impl Into<BoxError>) -> ProbeError {
    ProbeError::Answer {
        url: url.clone(),
        path,
        source: source.into(),
    }
}
