//! The gauges that say how loaded each rank is: of the worker in `deploy/trtllm` at `/metrics`, and of trtllm-serve,
//! without ranks, at `/prometheus/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use domain::{BlockSize, DpRank};

use crate::gauges::{Gauges, Scrape, Series, count, name_of};

const RUNNING: &str = "trtllm_num_requests_running";
const WAITING: &str = "trtllm_num_requests_waiting";
const MAX_BLOCKS: &str = "trtllm_kv_cache_max_blocks";
const USED_BLOCKS: &str = "trtllm_kv_cache_used_blocks";
const BLOCK_SIZE: &str = "trtllm_kv_cache_tokens_per_block";

/// Reads the Prometheus text. A series without the label `dp_rank` is the server's, which is rank 0's where that is
/// the only one.
pub fn parse_metrics(text: &str) -> Scrape {
    let mut scrape = Scrape::default();
    let mut used = Vec::new();
    for line in text.lines() {
        let (name, rest) = name_of(line);
        if !matches!(
            name,
            RUNNING | WAITING | MAX_BLOCKS | USED_BLOCKS | BLOCK_SIZE
        ) {
            continue;
        }
        match apply(&mut scrape, name, rest) {
            None => scrape.unreadable += 1,
            Some((rank, blocks)) if name == USED_BLOCKS => used.push((rank, blocks)),
            Some(_) => {}
        }
    }
    for (rank, blocks) in used {
        if let Some(gauges) = scrape.ranks.get_mut(&rank) {
            let all = gauges.kv_blocks.filter(|all| *all != 0);
            gauges.kv_used = all.map(|all| (blocks as f64 / all as f64).min(1.0));
        }
    }
    scrape
}

/// The Prometheus text of a worker with these ranks.
pub fn encode_metrics(ranks: &BTreeMap<DpRank, Gauges>) -> String {
    let mut text = String::new();
    let used = |it: &Gauges| {
        it.kv_used
            .zip(it.kv_blocks)
            .map(|(share, all)| (share * all as f64).round() as u64)
    };
    let of = |name: &str, it: &Gauges| match name {
        RUNNING => it.running.map(u64::from),
        WAITING => it.waiting.map(u64::from),
        MAX_BLOCKS => it.kv_blocks,
        USED_BLOCKS => used(it),
        _ => it.block_size.map(|size| size.get().into()),
    };
    for name in [RUNNING, WAITING, MAX_BLOCKS, USED_BLOCKS, BLOCK_SIZE] {
        for (rank, gauges) in ranks {
            if let Some(value) = of(name, gauges) {
                // Writing to a String cannot fail.
                _ = writeln!(text, "{name}{{dp_rank=\"{rank}\"}} {value}");
            }
        }
    }
    text
}

/// Takes over one series; none when it cannot be read.
fn apply(scrape: &mut Scrape, name: &str, rest: &str) -> Option<(DpRank, u64)> {
    let series = Series::parse(rest)?;
    let value = count(series.value)?;
    let rank = series.label("dp_rank").map_or(Ok(0), str::parse).ok()?;
    let rank = DpRank::new(rank);
    let gauges = scrape.rank(rank)?;
    match name {
        RUNNING => gauges.running = Some(value.try_into().ok()?),
        WAITING => gauges.waiting = Some(value.try_into().ok()?),
        MAX_BLOCKS => gauges.kv_blocks = Some(value),
        BLOCK_SIZE => gauges.block_size = BlockSize::new(value.try_into().ok()?).ok(),
        _ => {}
    }
    Some((rank, value))
}
