//! The gauges and counters of `GET /metrics` that say how loaded each rank is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use domain::{BlockSize, DpRank, RankLoad, Timestamp, Tokens};

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
/// The most ranks one server can list.
const MAX_RANKS: usize = 4096;

/// What one rank's metrics say; none where they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Requests being prefilled or decoded.
    pub running: Option<u32>,
    /// Requests in the engine's own queue.
    pub waiting: Option<u32>,
    /// The share of KV blocks in use by running requests, 0 to 1. Blocks that are only cached do not count.
    pub kv_used: Option<f64>,
    /// Prompt tokens looked up in the prefix cache since the engine started.
    pub prefix_queries: Option<Tokens>,
    /// Of those, tokens found.
    pub prefix_hits: Option<Tokens>,
    /// Tokens per block.
    pub block_size: Option<BlockSize>,
    /// Blocks this rank can hold. vLLM says the sum over a server's ranks, each with the same, and counts in
    /// each the block that it keeps to itself; this is one rank's share without that.
    pub kv_blocks: Option<u64>,
}

/// What a server's metrics say, by rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// The gauges of each rank that has any.
    pub ranks: BTreeMap<DpRank, Gauges>,
    /// Lines of the metrics named here that could not be read.
    pub unreadable: usize,
}

impl Gauges {
    /// The rank's load as of `at`; none unless all of it is known.
    pub fn load(&self, dp_rank: DpRank, at: Timestamp) -> Option<RankLoad> {
        Some(RankLoad {
            dp_rank,
            running: self.running?,
            waiting: self.waiting?,
            kv_used: self.kv_used?,
            at,
        })
    }
}

/// Reads the Prometheus text of `GET /metrics`. A rank is a series' `engine` label.
pub fn parse_metrics(text: &str) -> Scrape {
    let mut scrape = Scrape::default();
    let mut configured = 0_u64;
    for line in text.lines() {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        if !matches!(
            name,
            RUNNING | WAITING | KV_USED | KV_USED_OLD | PREFIX_QUERIES | PREFIX_HITS | CACHE_CONFIG
        ) {
            continue;
        }
        if apply(&mut scrape.ranks, name, &line[name.len()..]).is_none() {
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
fn apply(ranks: &mut BTreeMap<DpRank, Gauges>, name: &str, rest: &str) -> Option<()> {
    let (labels, value) = labels(rest)?;
    let value: f64 = value.split_ascii_whitespace().next()?.parse().ok()?;
    let label = |wanted: &str| {
        let found = labels.iter().find(|(label, _)| *label == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let rank = DpRank::new(label("engine")?.parse().ok()?);
    if ranks.len() >= MAX_RANKS && !ranks.contains_key(&rank) {
        return None;
    }
    let mut gauges = ranks.get(&rank).copied().unwrap_or_default();
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
    ranks.insert(rank, gauges);
    Some(())
}

fn count(value: f64) -> Option<u64> {
    (value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// Splits what follows a metric's name into its labels and the rest of the line.
fn labels(rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    let Some(mut rest) = rest.strip_prefix('{') else {
        return Some((labels, rest));
    };
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(value) = rest.strip_prefix('}') {
            return Some((labels, value));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = unquoted(quoted)?;
        labels.push((name, value));
        rest = after;
    }
}

/// The text up to the closing quote, with escapes resolved, and what follows the quote.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    loop {
        match characters.next()? {
            (end, '"') => return Some((text, &quoted[end + 1..])),
            (_, '\\') => match characters.next()? {
                (_, 'n') => text.push('\n'),
                (_, escaped) => text.push(escaped),
            },
            (_, character) => text.push(character),
        }
    }
}

/// The Prometheus text of a server of `model` with these ranks.
pub fn encode_metrics(model: &str, ranks: &BTreeMap<DpRank, Gauges>) -> String {
    let mut text = String::new();
    let model = model
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
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
