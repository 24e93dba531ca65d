//! What `GET /metrics` says, under the engine's names.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use domain::{DpRank, Tokens};
use engine_wire::{Gauges, sglang, trtllm, vllm};

use crate::dialect::Dialect;
use crate::driver::RankReport;

/// What has happened on one rank since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankCounters {
    /// Prompt tokens of requests that began.
    pub(crate) prompt_tokens: u64,
    /// Of those, tokens taken from the cache.
    pub(crate) cached_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) preempted: u64,
}

/// The Prometheus text.
pub(crate) fn text(
    dialect: Dialect,
    model: &str,
    engine: &engine_model::Config,
    reports: &[RankReport],
) -> String {
    let gauges = |report: &RankReport| Gauges {
        running: Some(report.status.running),
        waiting: Some(report.status.waiting),
        kv_used: Some(report.status.kv_used),
        prefix_queries: Some(Tokens::new(report.counters.prompt_tokens)),
        prefix_hits: Some(Tokens::new(report.counters.cached_tokens)),
        block_size: Some(engine.block_size),
        kv_blocks: Some(u64::from(engine.kv_blocks)),
    };
    let ranks: BTreeMap<DpRank, Gauges> = reports.iter().map(|it| (it.rank, gauges(it))).collect();
    let escaped = model.escape_default().to_string();
    match dialect {
        Dialect::Vllm => {
            let mut text = vllm::encode_metrics(model, &ranks);
            for report in reports {
                write_counters(&mut text, &escaped, report);
            }
            text
        }
        Dialect::TensorRtLlm => trtllm::encode_metrics(&ranks),
        Dialect::Sglang => {
            let mut text = sglang::encode_metrics(model, &ranks);
            write_sums(&mut text, &escaped, reports);
            text
        }
    }
}

fn write_counters(text: &mut String, model: &str, report: &RankReport) {
    let counters = &report.counters;
    let computed = counters.prompt_tokens - counters.cached_tokens;
    let rows = [
        ("prompt_tokens_total", "", counters.prompt_tokens),
        ("prompt_tokens_cached_total", "", counters.cached_tokens),
        ("prompt_tokens_by_source_total", "local_compute", computed),
        (
            "prompt_tokens_by_source_total",
            "local_cache_hit",
            counters.cached_tokens,
        ),
        ("generation_tokens_total", "", counters.generated_tokens),
        ("num_preemptions_total", "", counters.preempted),
        ("request_success_total", "", counters.finished),
        ("request_aborted_total", "", counters.aborted),
    ];
    let rank = report.rank;
    for (name, source, value) in rows {
        let source = match source {
            "" => String::new(),
            source => format!(",source=\"{source}\""),
        };
        // Writing to a String cannot fail.
        _ = writeln!(
            text,
            "vllm:{name}{{engine=\"{rank}\",model_name=\"{model}\"{source}}} {value}"
        );
    }
}

/// SGLang's counters, which have no rank.
fn write_sums(text: &mut String, model: &str, reports: &[RankReport]) {
    let sum = |value: fn(&RankCounters) -> u64| -> u64 {
        reports.iter().map(|it| value(&it.counters)).sum()
    };
    let rows = [
        ("prompt_tokens_total", "", sum(|it| it.prompt_tokens)),
        (
            "cached_tokens_total",
            ",cache_source=\"device\"",
            sum(|it| it.cached_tokens),
        ),
        ("generation_tokens_total", "", sum(|it| it.generated_tokens)),
        ("num_requests_total", "", sum(|it| it.finished)),
    ];
    for (name, label, value) in rows {
        // Writing to a String cannot fail.
        _ = writeln!(
            text,
            "sglang:{name}{{engine_type=\"unified\",model_name=\"{model}\"{label}}} {value}"
        );
    }
}
