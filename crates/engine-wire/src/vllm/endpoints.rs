//! Where the ranks of a vLLM server publish their events: asked of the server, or computed.

use std::collections::BTreeMap;

use domain::{DpRank, RankEndpoint};
use serde::{Deserialize, Serialize};

/// The most ranks one server can list.
const MAX_RANKS: usize = 4096;

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

/// Why endpoints cannot be computed from base ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortsError {
    /// A rank's port would lie beyond the last.
    #[error("port {base} + rank {rank} is beyond 65535")]
    BeyondLast {
        /// The base port.
        base: u16,
        /// The rank.
        rank: DpRank,
    },
    /// A port would serve both one rank's events and another's replay.
    #[error("port {port} would serve both events and replay: set the base ports further apart")]
    Overlap {
        /// Which.
        port: u16,
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

/// Replaces the host of a TCP endpoint that was bound to every address.
fn reachable(endpoint: &str, worker_host: &str) -> String {
    let Some((host, port)) = endpoint
        .strip_prefix("tcp://")
        .and_then(|address| address.rsplit_once(':'))
    else {
        return endpoint.to_owned();
    };
    match host {
        "*" | "::" | "[::]" | "0.0.0.0" => tcp(worker_host, port),
        _ => endpoint.to_owned(),
    }
}

fn tcp(host: &str, port: impl std::fmt::Display) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("tcp://[{host}]:{port}")
    } else {
        format!("tcp://{host}:{port}")
    }
}

/// What a server was told about its publishers, for servers that cannot be asked. Rank r publishes on the
/// base port plus r, r counted over the whole deployment.
#[derive(Clone, Copy, Debug)]
pub struct BasePorts<'a> {
    /// Where the ranks run.
    pub host: &'a str,
    /// Rank 0's port for events.
    pub publish: u16,
    /// Rank 0's port for replay.
    pub replay: Option<u16>,
    /// What events are published under.
    pub topic: &'a str,
}

/// The endpoints of `ranks`, in their order.
pub fn computed_endpoints(
    base: BasePorts<'_>,
    ranks: impl IntoIterator<Item = DpRank>,
) -> Result<Vec<RankEndpoint>, PortsError> {
    let mut publish_ports = Vec::new();
    let mut replay_ports = Vec::new();
    let mut endpoints = Vec::new();
    for dp_rank in ranks {
        let publish = port(base.publish, dp_rank)?;
        let replay = base.replay.map(|base| port(base, dp_rank)).transpose()?;
        publish_ports.push(publish);
        replay_ports.extend(replay);
        endpoints.push(RankEndpoint {
            dp_rank,
            publish: tcp(base.host, publish),
            replay: replay.map(|port| tcp(base.host, port)),
            topic: base.topic.to_owned(),
        });
    }
    match replay_ports
        .into_iter()
        .find(|port| publish_ports.contains(port))
    {
        Some(port) => Err(PortsError::Overlap { port }),
        None => Ok(endpoints),
    }
}

fn port(base: u16, rank: DpRank) -> Result<u16, PortsError> {
    u16::try_from(rank.get())
        .ok()
        .and_then(|rank| base.checked_add(rank))
        .ok_or(PortsError::BeyondLast { base, rank })
}
