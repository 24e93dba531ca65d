//! What an engine says about one rank's load.

use crate::{DpRank, Timestamp};

/// One rank's gauges as scraped from its engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankLoad {
    /// The rank.
    pub dp_rank: DpRank,
    /// Requests being prefilled or decoded.
    pub running: u32,
    /// Requests in the engine's own queue.
    pub waiting: u32,
    /// The share of KV blocks in use by running requests, 0 to 1.
    pub kv_used: f64,
    /// When the engine was asked.
    pub at: Timestamp,
}
