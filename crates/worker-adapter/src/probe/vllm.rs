//! What a vLLM says of itself.

use domain::{BlockSize, KvEndpoints};
use engine_wire::trtllm::Conversations;
use engine_wire::{Scrape, parse_models, vllm};
use serde::Deserialize;

use super::ProbeError;
use super::asking::Asking;
use super::found::Found;

#[derive(Deserialize)]
struct Version {
    version: String,
}

const METRICS: &str = "/metrics";
const MODELS: &str = "/v1/models";
const SOURCES: &str = "/kv_event_sources";

pub(super) async fn ask(asking: Asking<'_>) -> Result<Found, ProbeError> {
    let health = asking.ask("/health").await?;
    let models = asking.require(MODELS).await?;
    let models = parse_models(&models).map_err(|source| asking.strange(MODELS, source))?;
    let version = asking.optional("/version").await?;
    let version = version.and_then(|body| serde_json::from_slice::<Version>(&body).ok());
    let metrics = ask_load(asking).await?;
    let endpoints = match asking.optional(SOURCES).await? {
        None => Vec::new(),
        Some(body) => {
            let endpoints = vllm::parse_kv_event_sources(&body, asking.url.host());
            endpoints.map_err(|source| asking.strange(SOURCES, source))?
        }
    };
    // The ranks that publish events are all there are; the ranks that have gauges are those of the front end that was
    // asked.
    let mut ranks: Vec<u32> = endpoints.iter().map(|it| it.dp_rank.get()).collect();
    if ranks.is_empty() {
        ranks = metrics.ranks.keys().map(|it| it.get()).collect();
    }
    let gauges = metrics.ranks.values();
    let page_size = gauges.clone().find_map(|it| it.block_size);
    let page_size = page_size.map(BlockSize::get);
    let pages = gauges.filter_map(|it| it.kv_blocks).min();
    Ok(Found {
        healthy: health.status == 200,
        version: version.map(|it| it.version).unwrap_or_default(),
        models,
        ranks,
        page_size,
        rank_tokens: pages
            .zip(page_size)
            .map(|(pages, size)| pages.saturating_mul(size.into())),
        events: match endpoints.is_empty() {
            true => KvEndpoints::None,
            false => KvEndpoints::Zmq(endpoints),
        },
        takes_ranks: true,
        conversations: Conversations::Sender,
    })
}

pub(super) async fn ask_load(asking: Asking<'_>) -> Result<Scrape, ProbeError> {
    let body = asking.require(METRICS).await?;
    Ok(vllm::parse_metrics(asking.text(METRICS, &body)?))
}
