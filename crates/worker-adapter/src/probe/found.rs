//! Puts together what an engine says of itself and what its operator says of it. What neither says is an error, and what
//! both say must agree.

use domain::{
    BlockSize, DpRank, Endpoint, Epoch, HeaderSpace, KvEndpoints, ModelName, TargetState,
    Timestamp, Worker, WorkerId,
};
use engine_wire::trtllm::Conversations;
use engine_wire::{
    BasePorts, Model, Numbering, Row, capability, check_version, computed_endpoints,
};

use super::ProbeError;
use super::asking::{QUOTED_BYTES, quoted};
use crate::address::{EngineUrl, EventsAt};
use crate::config::{EngineName, WorkerConfig};

/// The smallest block that pages are gathered into, in tokens: below it the index would hold a hash for every few
/// tokens.
const MIN_BLOCK: u32 = 16;
/// Blocks of an engine that has none of its own, in tokens.
const FREE_BLOCK: u32 = 32;

/// What an engine says of itself.
pub(super) struct Found {
    pub(super) healthy: bool,
    /// Empty where it does not say.
    pub(super) version: String,
    pub(super) models: Vec<Model>,
    /// In any order; empty where it does not say.
    pub(super) ranks: Vec<u32>,
    /// Tokens per page of its cache.
    pub(super) page_size: Option<u32>,
    /// Tokens that one rank's cache can hold.
    pub(super) rank_tokens: Option<u64>,
    pub(super) events: KvEndpoints,
    /// Whether its front end can be asked for ranks at all, as the table of its engine says.
    pub(super) takes_ranks: bool,
    /// Who places its conversations.
    pub(super) conversations: Conversations,
}

/// The worker, in its first epoch and without a lease: neither is known here.
pub(super) fn describe(
    id: WorkerId,
    config: &WorkerConfig,
    engine: EngineName,
    found: Found,
) -> Result<Worker, ProbeError> {
    check_version(engine.into(), &found.version).map_err(|too_old| ProbeError::Unusable {
        worker: id.clone(),
        engine,
        why: too_old.to_string(),
    })?;
    if config.owns_bindings.is_some() && engine != EngineName::TensorRtLlm {
        return Err(ProbeError::Mismatch {
            worker: id,
            found: format!("no conversations to keep: {engine} knows of none"),
            key: "owns_bindings",
        });
    }
    let version = quoted(found.version.clone());
    let model = model_of(&id, config, &found.models)?;
    let (start_rank, dp_size) = ranks_of(&id, config, &found)?;
    let (page_size, block_size) = sizes_of(&id, config, engine, found.page_size)?;
    let header_space = match found.takes_ranks {
        true => header_space_of(&id, config, engine, &version, start_rank, dp_size)?,
        false => no_header_space(&id, config)?,
    };
    let ranks = start_rank..start_rank + dp_size;
    let kv_endpoints = endpoints_of(&id, config, ranks, engine, found.events)?;
    let found_blocks = found.rank_tokens.map(|it| it / u64::from(block_size.get()));
    Ok(Worker {
        epoch: Epoch::FIRST,
        engine: engine.into(),
        capability: found.conversations.limit(
            dp_size,
            capability(engine.into(), &version, dp_size, header_space),
        ),
        version,
        model,
        start_rank,
        dp_size,
        block_size,
        page_size,
        kv_blocks: config.kv_blocks.or(found_blocks),
        state: match found.healthy {
            true => TargetState::Ready,
            false => TargetState::Warming,
        },
        url: config.url.to_string(),
        kv_endpoints,
        lease_until: Timestamp::ZERO,
        id,
    })
}

fn model_of(
    id: &WorkerId,
    config: &WorkerConfig,
    listed: &[Model],
) -> Result<ModelName, ProbeError> {
    let names = || listed.iter().map(|it| it.name.as_str());
    match &config.model {
        Some(model) if listed.iter().any(|it| it.name == *model) => Ok(model.clone()),
        Some(model) => Err(ProbeError::Mismatch {
            worker: id.clone(),
            found: format!(
                "no model {model}, only {}",
                quoted(names().collect::<Vec<_>>().join(", "))
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

/// The first rank and how many there are.
fn ranks_of(id: &WorkerId, config: &WorkerConfig, found: &Found) -> Result<(u32, u32), ProbeError> {
    let mut ranks = found.ranks.clone();
    ranks.sort_unstable();
    let first = ranks.first().copied();
    let count = u32::try_from(ranks.len()).ok().filter(|count| *count != 0);
    let contiguous = ranks
        .windows(2)
        .all(|pair| pair[0].checked_add(1) == Some(pair[1]));
    if !contiguous {
        return Err(ProbeError::Mismatch {
            worker: id.clone(),
            found: format!(
                "ranks {}, which are not consecutive",
                quoted(format!("{ranks:?}"))
            ),
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

/// Tokens per page and per block.
fn sizes_of(
    id: &WorkerId,
    config: &WorkerConfig,
    engine: EngineName,
    found: Option<u32>,
) -> Result<(BlockSize, BlockSize), ProbeError> {
    let size = |tokens: Option<u32>| {
        let tokens = tokens.unwrap_or(0);
        BlockSize::new(tokens).map_err(|why| match tokens {
            0 => ProbeError::Missing {
                worker: id.clone(),
                what: "block size",
                key: "block_size",
            },
            _ => ProbeError::Mismatch {
                worker: id.clone(),
                found: format!("a block or page of {tokens} tokens, which {why}"),
                key: "block_size",
            },
        })
    };
    let set = config.block_size;
    match engine {
        EngineName::Vllm | EngineName::TensorRtLlm => {
            let size = size(agreed(id, set, found, "block_size")?)?;
            Ok((size, size))
        }
        EngineName::LlamaCpp => {
            let size = size(set.or(Some(FREE_BLOCK)))?;
            Ok((size, size))
        }
        EngineName::Sglang => {
            let page = size(found.or(set))?.get();
            let block = set.unwrap_or(MIN_BLOCK.max(page).next_multiple_of(page));
            if !block.is_multiple_of(page) {
                return Err(ProbeError::Mismatch {
                    worker: id.clone(),
                    found: format!(
                        "pages of {page} tokens, of which blocks of {block} cannot be made"
                    ),
                    key: "block_size",
                });
            }
            Ok((size(Some(page))?, size(Some(block))?))
        }
    }
}

/// Of a front end that takes no rank; whoever says otherwise would have requests run anywhere.
fn no_header_space(id: &WorkerId, config: &WorkerConfig) -> Result<HeaderSpace, ProbeError> {
    match config.header_space.map(HeaderSpace::from) {
        None | Some(HeaderSpace::None) => Ok(HeaderSpace::None),
        Some(HeaderSpace::Local | HeaderSpace::Global) => Err(ProbeError::Mismatch {
            worker: id.clone(),
            found:
                "a front end that takes no rank (trtllm-serve; the worker in deploy/trtllm does)"
                    .to_owned(),
            key: "header_space",
        }),
    }
}

fn header_space_of(
    id: &WorkerId,
    config: &WorkerConfig,
    engine: EngineName,
    version: &str,
    start_rank: u32,
    dp_size: u32,
) -> Result<HeaderSpace, ProbeError> {
    let row = Row::of(engine.into(), version, Endpoint::Chat);
    match (config.header_space, row.numbering) {
        (Some(name), _) => Ok(name.into()),
        (None, _) if dp_size == 1 => Ok(HeaderSpace::None),
        (None, Numbering::FromZero) => Ok(HeaderSpace::Global),
        (None, Numbering::ByFrontEnd) if start_rank == 0 => Ok(HeaderSpace::Global),
        // vLLM's Python front end counts from 0 here, its Rust front end does not: a guess would send
        // every request to the wrong rank.
        (None, Numbering::ByFrontEnd) => Err(ProbeError::Missing {
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
    engine: EngineName,
    found: KvEndpoints,
) -> Result<KvEndpoints, ProbeError> {
    let mismatch = |found: String, key| ProbeError::Mismatch {
        worker: id.clone(),
        found,
        key,
    };
    let endpoints = match (&config.kv_events, &config.kv_replay) {
        (None, None) => return addresses(id, found),
        _ if engine == EngineName::LlamaCpp => {
            let found = "no KV events: llama.cpp announces none".to_owned();
            return Err(mismatch(found, "kv_events"));
        }
        (None, Some(_)) => {
            let found = "a place for replay and none for events".to_owned();
            return Err(mismatch(found, "kv_events"));
        }
        (Some(EventsAt::Drained(url)), None) if engine == EngineName::TensorRtLlm => {
            return Ok(KvEndpoints::Drained(drain_of(url)));
        }
        (Some(EventsAt::Drained(_)), _) => {
            let found = match engine {
                EngineName::TensorRtLlm => "no replay of events that are asked for",
                _ => "no KV events over HTTP, only at tcp://host:port",
            };
            let key = match engine {
                EngineName::TensorRtLlm => "kv_replay",
                _ => "kv_events",
            };
            return Err(mismatch(found.to_owned(), key));
        }
        (Some(EventsAt::Published(events)), replay) => {
            let host = events.host(&config.url);
            if replay
                .as_ref()
                .is_some_and(|it| it.host(&config.url) != host)
            {
                let found = "replay on another host than its events".to_owned();
                return Err(mismatch(found, "kv_replay"));
            }
            let base = BasePorts {
                host,
                publish: events.port(),
                replay: replay.as_ref().map(|it| it.port()),
                topic: "",
            };
            computed_endpoints(base, ranks.map(DpRank::new))
                .map_err(|error| mismatch(format!("no such event ports ({error})"), "kv_events"))?
        }
    };
    Ok(KvEndpoints::Zmq(endpoints))
}

/// What an engine says of its events, where it can be an address: each is repeated wherever it cannot be reached.
fn addresses(id: &WorkerId, found: KvEndpoints) -> Result<KvEndpoints, ProbeError> {
    if let KvEndpoints::Zmq(endpoints) = &found {
        let texts = endpoints
            .iter()
            .flat_map(|it| [Some(&it.publish), it.replay.as_ref(), Some(&it.topic)]);
        if let Some(long) = texts.flatten().find(|it| QUOTED_BYTES < it.len()) {
            return Err(ProbeError::Mismatch {
                worker: id.clone(),
                found: format!(
                    "{} bytes of address or topic of KV events, {}",
                    long.len(),
                    quoted(long.clone())
                ),
                key: "kv_events",
            });
        }
    }
    Ok(found)
}

/// Where a server gives KV events.
pub(super) fn drain_of(url: &EngineUrl) -> String {
    format!("{url}/kv_cache_events")
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
