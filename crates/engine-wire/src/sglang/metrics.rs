//! The gauges of `GET /metrics` (with `--enable-metrics`) that say how loaded each rank is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use domain::DpRank;

use crate::gauges::{Gauges, Scrape, Series, count, escaped, name_of};

const RUNNING: &str = "sglang:num_running_reqs";
const WAITING: &str = "sglang:num_queue_reqs";
const KV_USED: &str = "sglang:token_usage";

/// Reads the Prometheus text of `GET /metrics`. A rank is a series' `dp_rank` label; a server without
/// data parallelism writes none, and its rank is 0. Of the series of one rank's tensor-parallel ranks, which
/// say the same at different times, the largest counts; of those by priority, the one over all. Counters of
/// cached tokens have no rank and are not read.
pub fn parse_metrics(text: &str) -> Scrape {
    let mut scrape = Scrape::default();
    for line in text.lines() {
        let (name, rest) = name_of(line);
        if matches!(name, RUNNING | WAITING | KV_USED) && apply(&mut scrape, name, rest).is_none() {
            scrape.unreadable += 1;
        }
    }
    scrape
}

/// Takes over one series; none when it cannot be read.
fn apply(scrape: &mut Scrape, name: &str, rest: &str) -> Option<()> {
    let series = Series::parse(rest)?;
    if !matches!(series.label("priority"), None | Some("")) {
        return Some(());
    }
    let rank = match series.label("dp_rank") {
        Some(rank) => DpRank::new(rank.parse().ok()?),
        None => DpRank::new(0),
    };
    if name == KV_USED {
        let used = series.value.is_finite().then_some(series.value)?;
        let known = &mut scrape.rank(rank)?.kv_used;
        *known = Some(known.unwrap_or(0.0).max(used.clamp(0.0, 1.0)));
        return Some(());
    }
    let requests = u32::try_from(count(series.value)?).ok()?;
    let gauges = scrape.rank(rank)?;
    let known = match name {
        RUNNING => &mut gauges.running,
        _ => &mut gauges.waiting,
    };
    *known = (*known).max(Some(requests));
    Some(())
}

/// The Prometheus text of a server of `model` with these ranks.
pub fn encode_metrics(model: &str, ranks: &BTreeMap<DpRank, Gauges>) -> String {
    let mut text = String::new();
    let model = escaped(model);
    let mut family = |name: &str, value: fn(&Gauges) -> Option<f64>| {
        _ = writeln!(text, "# TYPE {name} gauge");
        for (rank, gauges) in ranks {
            let label = match ranks.len() {
                1 => String::new(),
                _ => format!(",dp_rank=\"{rank}\""),
            };
            if let Some(value) = value(gauges) {
                _ = writeln!(
                    text,
                    "{name}{{engine_type=\"unified\",model_name=\"{model}\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"{label}}} {value:?}"
                );
            }
        }
    };
    family(RUNNING, |gauges| gauges.running.map(f64::from));
    family(WAITING, |gauges| gauges.waiting.map(f64::from));
    family(KV_USED, |gauges| gauges.kv_used);
    text
}
