//! What an SGLang says of itself.
//!
//! Its `/health` has it generate a token, which takes a second and fills a page, so it is not asked: an answer of
//! `/server_info` comes from every rank's scheduler.

use domain::{DpRank, KvEndpoints, WorkerId};
use engine_wire::sglang::{self, KvEvents, ServerInfo};
use engine_wire::trtllm::Conversations;
use engine_wire::{BasePorts, Scrape, Version, computed_endpoints, parse_models};

use super::ProbeError;
use super::asking::{Asking, quoted};
use super::found::Found;

/// The first version whose replicas (data parallelism without attention DP) publish at a port each.
const REPLICAS_APART: Version = Version::new(0, 5, 15);
const MODELS: &str = "/v1/models";
const LOADS: &str = "/v1/loads";
const METRICS: &str = "/metrics";
const INFO: &str = "/server_info";
/// Its name before 0.5.6.
const INFO_OLD: &str = "/get_server_info";

pub(super) async fn ask(asking: Asking<'_>, worker: &WorkerId) -> Result<Found, ProbeError> {
    let info = match asking.optional(INFO).await? {
        Some(body) => body,
        None => match asking.optional(INFO_OLD).await? {
            Some(body) => body,
            // The newer name is the one to be told of.
            None => asking.require(INFO).await?,
        },
    };
    let info = sglang::parse_server_info(&info).map_err(|source| asking.strange(INFO, source))?;
    // Since some version it says here that it is paused; an older one does not know the path.
    let ready = asking.ask("/ready").await?;
    let models = asking.require(MODELS).await?;
    let models = parse_models(&models).map_err(|source| asking.strange(MODELS, source))?;
    let events = match &info.kv_events {
        None => KvEndpoints::None,
        Some(events) => endpoints(&asking, worker, &info, events)?,
    };
    let paged = info.kv_events.as_ref().and_then(|it| it.page_size);
    Ok(Found {
        healthy: ready.status != 503,
        models,
        ranks: (0..info.dp_size).collect(),
        page_size: paged.or(info.page_size),
        rank_tokens: info.max_tokens,
        events,
        takes_ranks: true,
        conversations: Conversations::Sender,
        version: info.version,
    })
}

/// Where the ranks publish. A server on several nodes says one base port, so of its ranks only those on the host that
/// it names, or on the engine's own, are found there.
fn endpoints(
    asking: &Asking<'_>,
    worker: &WorkerId,
    info: &ServerInfo,
    events: &KvEvents,
) -> Result<KvEndpoints, ProbeError> {
    let apart = Version::parse(&info.version).is_none_or(|version| REPLICAS_APART <= version);
    if 1 < info.dp_size && !info.attention_dp && !apart {
        return Err(ProbeError::Unusable {
            worker: worker.clone(),
            engine: asking.engine,
            why: format!(
                "version {}, whose replicas all publish their events at one port: run {REPLICAS_APART} or newer, or \
                 attention DP",
                quoted(info.version.clone())
            ),
        });
    }
    let base = BasePorts {
        host: match engine_wire::is_wildcard(&events.host) {
            true => asking.url.host(),
            false => &events.host,
        },
        publish: events.publish,
        replay: events.replay,
        topic: &events.topic,
    };
    let endpoints = computed_endpoints(base, (0..info.dp_size).map(DpRank::new));
    let endpoints = endpoints.map_err(|source| asking.strange(INFO, source))?;
    Ok(KvEndpoints::Zmq(endpoints))
}

/// Asks the way that works without `--enable-metrics` and is a fiftieth of the size, else for metrics; of no rank where
/// the server has neither.
pub(super) async fn ask_load(asking: Asking<'_>) -> Result<Scrape, ProbeError> {
    if let Some(body) = asking.optional(LOADS).await? {
        return sglang::parse_loads(&body).map_err(|source| asking.strange(LOADS, source));
    }
    match asking.optional(METRICS).await? {
        Some(body) => Ok(sglang::parse_metrics(asking.text(METRICS, &body)?)),
        None => Ok(Scrape::default()),
    }
}
