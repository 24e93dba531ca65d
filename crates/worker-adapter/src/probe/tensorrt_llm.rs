//! What a TensorRT-LLM says of itself: behind the worker in `deploy/trtllm` all that is needed, behind trtllm-serve
//! next to nothing.
//!
//! Of trtllm-serve `/metrics` and `/kv_cache_events` are not asked: whoever reads them takes them from others.

use domain::{KvEndpoints, WorkerId};
use engine_wire::trtllm::{Conversations, WorkerInfo, parse_metrics, parse_worker_info};
use engine_wire::{Model, Scrape, parse_models};
use serde::Deserialize;

use super::ProbeError;
use super::asking::Asking;
use super::found::{Found, drain_of};
use crate::config::WorkerConfig;

const MODELS: &str = "/v1/models";
const INFO: &str = "/worker_info";
const METRICS: &str = "/metrics";
/// trtllm-serve's, where it was started to have it.
const SERVE_METRICS: &str = "/prometheus/metrics";

#[derive(Deserialize)]
struct Version {
    version: String,
}

pub(super) async fn ask(
    asking: Asking<'_>,
    worker: &WorkerId,
    config: &WorkerConfig,
) -> Result<Found, ProbeError> {
    let health = asking.ask("/health").await?;
    let models = asking.require(MODELS).await?;
    let models = parse_models(&models).map_err(|source| asking.strange(MODELS, source))?;
    let healthy = health.status == 200;
    match asking.optional(INFO).await? {
        Some(body) => {
            let info = parse_worker_info(&body).map_err(|source| asking.strange(INFO, source))?;
            if config.owns_bindings.is_some() {
                return Err(ProbeError::Mismatch {
                    worker: worker.clone(),
                    found: "an engine that says itself who places its conversations".to_owned(),
                    key: "owns_bindings",
                });
            }
            Ok(of_worker(&asking, healthy, models, info))
        }
        None => of_serve(asking, config, healthy, models).await,
    }
}

fn of_worker(asking: &Asking<'_>, healthy: bool, models: Vec<Model>, info: WorkerInfo) -> Found {
    let tokens = |blocks: u64| blocks.saturating_mul(info.tokens_per_block.into());
    Found {
        healthy,
        models,
        ranks: (0..info.dp_size).collect(),
        page_size: Some(info.tokens_per_block),
        rank_tokens: info.kv_blocks.map(tokens),
        events: match info.kv_events {
            true => KvEndpoints::Drained(drain_of(asking.url)),
            false => KvEndpoints::None,
        },
        takes_ranks: true,
        conversations: info.conversations,
        version: info.version,
    }
}

async fn of_serve(
    asking: Asking<'_>,
    config: &WorkerConfig,
    healthy: bool,
    models: Vec<Model>,
) -> Result<Found, ProbeError> {
    let version = asking.optional("/version").await?;
    let version = version.and_then(|body| serde_json::from_slice::<Version>(&body).ok());
    let gauges = match asking.optional(SERVE_METRICS).await? {
        Some(body) => parse_metrics(asking.text(SERVE_METRICS, &body)?),
        None => Scrape::default(),
    };
    let gauges = gauges.ranks.values().next();
    Ok(Found {
        healthy,
        version: version.map(|it| it.version).unwrap_or_default(),
        models,
        ranks: Vec::new(),
        page_size: gauges.and_then(|it| it.block_size).map(|it| it.get()),
        rank_tokens: None,
        events: KvEndpoints::None,
        takes_ranks: false,
        conversations: match config.owns_bindings {
            Some(true) => Conversations::Engine,
            Some(false) | None => Conversations::Sender,
        },
    })
}

/// How loaded each rank is; of no rank of a trtllm-serve with several, whose gauges are those of all together.
pub(super) async fn ask_load(
    asking: Asking<'_>,
    config: &WorkerConfig,
) -> Result<Scrape, ProbeError> {
    let is_worker = asking.optional(INFO).await?.is_some();
    let path = match is_worker {
        true => METRICS,
        false if config.dp_size.unwrap_or(1) == 1 => SERVE_METRICS,
        false => return Ok(Scrape::default()),
    };
    match asking.optional(path).await? {
        Some(body) => Ok(parse_metrics(asking.text(path, &body)?)),
        None => Ok(Scrape::default()),
    }
}
