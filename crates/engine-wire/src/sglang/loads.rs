//! `GET /v1/loads` (since 0.5.8): how loaded each rank is, whether metrics are switched on or not.

use domain::DpRank;
use serde::Deserialize;

use crate::{Gauges, Scrape};

#[derive(Deserialize)]
struct Loads {
    loads: Vec<Load>,
}

#[derive(Deserialize)]
struct Load {
    dp_rank: Option<u32>,
    num_running_reqs: Option<u32>,
    num_waiting_reqs: Option<u32>,
    token_usage: Option<f64>,
}

/// Reads the answer to `GET /v1/loads`.
pub fn parse_loads(body: &[u8]) -> Result<Scrape, serde_json::Error> {
    let answer: Loads = serde_json::from_slice(body)?;
    let mut scrape = Scrape::default();
    for load in answer.loads {
        match scrape.rank(DpRank::new(load.dp_rank.unwrap_or(0))) {
            Some(gauges) => {
                *gauges = Gauges {
                    running: load.num_running_reqs,
                    waiting: load.num_waiting_reqs,
                    kv_used: load.token_usage.map(|used| used.clamp(0.0, 1.0)),
                    ..Gauges::default()
                }
            }
            None => scrape.unreadable += 1,
        }
    }
    Ok(scrape)
}
