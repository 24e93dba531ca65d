//! Where the ranks of a vLLM server publish their events, as it says.

use std::collections::BTreeMap;

use domain::{DpRank, RankEndpoint};
use serde::{Deserialize, Serialize};

use crate::gauges::MAX_RANKS;
use crate::ports::reachable;

/// Why an answer to `GET /kv_event_sources` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// It is not an object of sources by rank.
    #[error("read the list of event sources")]
    Json(#[from] serde_json::Error),
    /// A key is no rank.
    #[error("{key:?} is not a rank")]
    Rank {
        /// The key, cut to 64 bytes.
        key: String,
    },
    /// There are more ranks than any server has.
    #[error("{ranks} ranks are more than {MAX_RANKS}")]
    TooManyRanks {
        /// How many.
        ranks: usize,
    },
}

/// What a server says of one rank's publisher.
#[derive(Deserialize, Serialize)]
struct Source {
    #[serde(default = "enabled")]
    enable_kv_cache_events: bool,
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    #[serde(default = "some")]
    buffer_steps: u64,
    #[serde(default)]
    hwm: u64,
    #[serde(default)]
    max_queue_size: u64,
    topic: Option<String>,
}

/// A server that does not say how much it keeps keeps something.
const fn some() -> u64 {
    1
}

const fn enabled() -> bool {
    true
}

/// Reads the answer to `GET /kv_event_sources` (vLLM from 0.31 on), ranks ascending. A wildcard host becomes
/// `worker_host`. A replay endpoint behind which nothing is kept is none. Ranks that publish nothing, or not over ZMQ, are left out.
pub fn parse_kv_event_sources(
    body: &[u8],
    worker_host: &str,
) -> Result<Vec<RankEndpoint>, SourcesError> {
    let sources: BTreeMap<String, Source> = serde_json::from_slice(body)?;
    if sources.len() > MAX_RANKS {
        return Err(SourcesError::TooManyRanks {
            ranks: sources.len(),
        });
    }
    let mut endpoints = Vec::with_capacity(sources.len());
    for (key, source) in sources {
        let rank = key.parse().map_err(|_| SourcesError::Rank {
            key: crate::event::cut(&key).to_owned(),
        })?;
        let over_zmq = source.enable_kv_cache_events && source.publisher.as_deref() != Some("null");
        let Some(endpoint) = source.endpoint.filter(|_| over_zmq) else {
            continue;
        };
        endpoints.push(RankEndpoint {
            dp_rank: DpRank::new(rank),
            publish: reachable(&endpoint, worker_host),
            replay: source
                .replay_endpoint
                .filter(|_| source.buffer_steps > 0)
                .map(|endpoint| reachable(&endpoint, worker_host)),
            topic: source.topic.unwrap_or_default(),
        });
    }
    endpoints.sort_by_key(|endpoint| endpoint.dp_rank);
    Ok(endpoints)
}

/// The body that answers `GET /kv_event_sources`, as a server of `endpoints` that keeps `buffer_steps`
/// batches for replay.
pub fn encode_kv_event_sources(endpoints: &[RankEndpoint], buffer_steps: u64) -> String {
    /// vLLM's default for both of its queues.
    const QUEUED_BATCHES: u64 = 100_000;
    let sources: BTreeMap<String, Source> = endpoints
        .iter()
        .map(|endpoint| {
            let source = Source {
                enable_kv_cache_events: true,
                publisher: Some("zmq".to_owned()),
                endpoint: Some(endpoint.publish.clone()),
                replay_endpoint: endpoint.replay.clone(),
                buffer_steps,
                hwm: QUEUED_BATCHES,
                max_queue_size: QUEUED_BATCHES,
                topic: Some(endpoint.topic.clone()),
            };
            (endpoint.dp_rank.to_string(), source)
        })
        .collect();
    serde_json::to_string(&sources).expect("texts and numbers have a JSON form")
}
