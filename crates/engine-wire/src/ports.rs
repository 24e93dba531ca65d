//! Addresses of ranks: computed from base ports, and made reachable from elsewhere.

use domain::{DpRank, RankEndpoint};

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

/// Replaces the host of a TCP endpoint that was bound to every address.
pub(crate) fn reachable(endpoint: &str, worker_host: &str) -> String {
    let Some((host, port)) = endpoint
        .strip_prefix("tcp://")
        .and_then(|address| address.rsplit_once(':'))
    else {
        return endpoint.to_owned();
    };
    match is_wildcard(host) {
        true => tcp(worker_host, port),
        false => endpoint.to_owned(),
    }
}

fn tcp(host: &str, port: impl std::fmt::Display) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("tcp://[{host}]:{port}")
    } else {
        format!("tcp://{host}:{port}")
    }
}

/// Whether the host of an address stands for every one of its machine, which is no address for others.
pub fn is_wildcard(host: &str) -> bool {
    matches!(host, "*" | "::" | "[::]" | "0.0.0.0")
}
