//! What a llama.cpp says of itself. Its slots are its ranks; it announces no KV events.

use domain::KvEndpoints;
use engine_wire::llama_cpp::{parse_deferred, parse_props, parse_slots};
use engine_wire::trtllm::Conversations;
use engine_wire::{Scrape, parse_models};

use super::ProbeError;
use super::asking::Asking;
use super::found::Found;

const MODELS: &str = "/v1/models";
const PROPS: &str = "/props";
const SLOTS: &str = "/slots";
const METRICS: &str = "/metrics";

pub(super) async fn ask(asking: Asking<'_>) -> Result<Found, ProbeError> {
    let health = asking.ask("/health").await?;
    if health.status == 503 {
        let url = asking.url.clone();
        return Err(ProbeError::Loading { url });
    }
    let props = asking.require(PROPS).await?;
    let props = parse_props(&props).map_err(|source| asking.strange(PROPS, source))?;
    let models = asking.require(MODELS).await?;
    let models = parse_models(&models).map_err(|source| asking.strange(MODELS, source))?;
    Ok(Found {
        healthy: health.status == 200,
        version: props.version,
        models,
        ranks: (0..props.slots).collect(),
        page_size: None,
        rank_tokens: Some(props.context.into()),
        events: KvEndpoints::None,
        takes_ranks: true,
        conversations: Conversations::Sender,
    })
}

/// How busy each slot is; of none where the server was started with `--no-slots`. Without `--metrics` nobody knows how
/// many requests wait.
pub(super) async fn ask_load(asking: Asking<'_>) -> Result<Scrape, ProbeError> {
    let Some(slots) = asking.optional(SLOTS).await? else {
        return Ok(Scrape::default());
    };
    let deferred = match asking.optional(METRICS).await? {
        Some(metrics) => parse_deferred(asking.text(METRICS, &metrics)?),
        None => None,
    };
    let ranks = parse_slots(&slots, deferred.unwrap_or(0));
    let ranks = ranks.map_err(|source| asking.strange(SLOTS, source))?;
    let unreadable = 0;
    Ok(Scrape { ranks, unreadable })
}
