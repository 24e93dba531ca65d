//! The gauges and counters of `GET /metrics` that say how loaded each rank is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use domain::{BlockSize, DpRank, Tokens};

use crate::gauges::{Gauges, Scrape, Series, count, escaped, name_of};

const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const KV_USED: &str = "vllm:kv_cache_usage_perc";
/// The name of [`KV_USED`] before vLLM 0.12.
const KV_USED_OLD: &str = "vllm:gpu_cache_usage_perc";
const PREFIX_QUERIES: &str = "vllm:prefix_cache_queries_total";
const PREFIX_HITS: &str = "vllm:prefix_cache_hits_total";
const CACHE_CONFIG: &str = "vllm:cache_config_info";
/// What each rank counts among its blocks and never gives out: vLLM points masked places at it.
const NULL_BLOCK: u64 = 1;

/// Reads the Prometheus text of `GET /metrics`. A rank is a series' `engine` label. Of blocks vLLM says the sum
/// over a server's ranks, each with the same, and counts in each the one that it keeps to itself; the gauges hold
/// one rank's share without that.
pub fn parse_metrics(text: &str) -> Scrape {
    let mut scrape = Scrape::default();
    let mut configured = 0_u64;
    for line in text.lines() {
        let (name, rest) = name_of(line);
        if !matches!(
            name,
            RUNNING | WAITING | KV_USED | KV_USED_OLD | PREFIX_QUERIES | PREFIX_HITS | CACHE_CONFIG
        ) {
            continue;
        }
        if apply(&mut scrape, name, rest).is_none() {
            scrape.unreadable += 1;
        } else if name == CACHE_CONFIG {
            configured += 1;
        }
    }
    for gauges in scrape.ranks.values_mut() {
        let share = gauges.kv_blocks.and_then(|all| all.checked_div(configured));
        gauges.kv_blocks = share.map(|blocks| blocks.saturating_sub(NULL_BLOCK));
    }
    scrape
}

/// Takes over one series; none when it cannot be read.
fn apply(scrape: &mut Scrape, name: &str, rest: &str) -> Option<()> {
    let series = Series::parse(rest)?;
    let (value, label) = (series.value, |wanted| series.label(wanted));
    let rank = DpRank::new(label("engine")?.parse().ok()?);
    let mut gauges = scrape.ranks.get(&rank).copied().unwrap_or_default();
    match name {
        RUNNING => gauges.running = Some(count(value)?.try_into().ok()?),
        WAITING => gauges.waiting = Some(count(value)?.try_into().ok()?),
        KV_USED | KV_USED_OLD if value.is_finite() => gauges.kv_used = Some(value.clamp(0.0, 1.0)),
        PREFIX_QUERIES => gauges.prefix_queries = Some(Tokens::new(count(value)?)),
        PREFIX_HITS => gauges.prefix_hits = Some(Tokens::new(count(value)?)),
        CACHE_CONFIG => {
            gauges.block_size = label("block_size")
                .and_then(|size| size.parse().ok())
                .and_then(|size| BlockSize::new(size).ok());
            gauges.kv_blocks = label("num_gpu_blocks").and_then(|blocks| blocks.parse().ok());
        }
        _ => return None,
    }
    *scrape.rank(rank)? = gauges;
    Some(())
}

/// The Prometheus text of a server of `model` with these ranks.
pub fn encode_metrics(model: &str, ranks: &BTreeMap<DpRank, Gauges>) -> String {
    let mut text = String::new();
    let model = escaped(model);
    let mut family = |name: &str, kind: &str, value: fn(&Gauges) -> Option<f64>| {
        _ = writeln!(text, "# TYPE {name} {kind}");
        for (rank, gauges) in ranks {
            if let Some(value) = value(gauges) {
                _ = writeln!(
                    text,
                    "{name}{{engine=\"{rank}\",model_name=\"{model}\"}} {value:?}"
                );
            }
        }
    };
    family(RUNNING, "gauge", |gauges| gauges.running.map(f64::from));
    family(WAITING, "gauge", |gauges| gauges.waiting.map(f64::from));
    family(KV_USED, "gauge", |gauges| gauges.kv_used);
    family(PREFIX_QUERIES, "counter", |gauges| {
        gauges.prefix_queries.map(Tokens::as_f64)
    });
    family(PREFIX_HITS, "counter", |gauges| {
        gauges.prefix_hits.map(Tokens::as_f64)
    });
    _ = writeln!(text, "# TYPE {CACHE_CONFIG} gauge");
    let blocks = ranks.values().filter_map(|gauges| gauges.kv_blocks);
    let all_blocks: u64 = blocks.map(|blocks| blocks + NULL_BLOCK).sum();
    for (rank, gauges) in ranks {
        if let (Some(block_size), Some(_)) = (gauges.block_size, gauges.kv_blocks) {
            let size = block_size.get();
            _ = writeln!(
                text,
                "{CACHE_CONFIG}{{block_size=\"{size}\",engine=\"{rank}\",num_gpu_blocks=\"{all_blocks}\"}} 1.0"
            );
        }
    }
    text
}
