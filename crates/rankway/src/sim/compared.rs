//! What came of a case: each policy's mean over the seeds, and how it stands to the others.

use accounting::{Gap, Totals};
use fleet_sim::Report;
use serde::Serialize;

use super::ablation::{Without, without};
use super::plan::Case;
use super::runs::Run;
use super::set;
use crate::report::{PolicyReport, Quantiles};

/// One workload under several policies.
#[derive(Serialize)]
pub(super) struct Compared {
    pub(super) workload: String,
    #[serde(skip)]
    pub(super) about: &'static str,
    pub(super) routers: u32,
    pub(super) load_age_s: f64,
    pub(super) seeds: Vec<u64>,
    /// What it ran on, in words.
    pub(super) setting: Vec<String>,
    /// Ranks of a worker, which wait for each other.
    pub(super) ranks_of_a_worker: u32,
    pub(super) policies: Vec<Row>,
    /// What differs without each term that was switched off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) without: Vec<Without>,
}

/// One policy: means over its runs, but for counts of requests and tokens, which are sums.
#[derive(Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) figures: PolicyReport,
    /// Runs, one a seed.
    pub(super) runs: usize,
    pub(super) ttft_mean_ms: Option<f64>,
    /// The median and the 99th percentile over the smallest of any policy here.
    pub(super) ttft_p50_over_best: Option<f64>,
    pub(super) ttft_p99_over_best: Option<f64>,
    /// Whether no other policy has both a lower median TTFT and a higher share of the ceiling.
    pub(super) on_pareto_front: bool,
    /// Requests, waiting or running, in the mean over time: at the rank of a worker that has most over the mean of its
    /// ranks, of the worker where it is worst.
    pub(super) queue_skew: Option<f64>,
    /// The same over the ranks of all workers.
    pub(super) queue_skew_of_all: Option<f64>,
    /// The same within a worker at each moment, in the mean over time.
    pub(super) queue_skew_at_once: Option<f64>,
    /// As `queue_skew` and `queue_skew_at_once`, of the tokens that wait to be computed.
    pub(super) pending_skew: Option<f64>,
    pub(super) pending_skew_at_once: Option<f64>,
    /// The share of the time in which a rank computes or waits for a sibling.
    pub(super) busy: Option<f64>,
    /// The share of the passes in which a rank had nothing to compute while a sibling had.
    pub(super) idle_share: Option<f64>,
    /// A step of a rollout, where the workload has such.
    pub(super) step_s: Option<f64>,
    pub(super) decode_tokens_per_s: Option<f64>,
    /// The share of later turns that ran where the one before did.
    pub(super) kept: Option<f64>,
    /// Simulated time.
    pub(super) took_s: Option<f64>,
    /// Whose share of `ceiling - realised` is whose.
    pub(super) gap: Shares,
    /// The least and the most over the seeds.
    pub(super) spread: Spread,
}

/// Shares of a gap, 0 to 1; none where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Shares {
    pub(super) memory: Option<f64>,
    pub(super) router: Option<f64>,
    pub(super) index: Option<f64>,
    pub(super) unavailable: Option<f64>,
    pub(super) in_flight: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    ttft_p50_ms: Option<[f64; 2]>,
    ttft_p99_ms: Option<[f64; 2]>,
    realised_over_ceiling: Option<[f64; 2]>,
}

impl Compared {
    /// Puts together the runs of a case, which stand by policy.
    pub(super) fn new(case: &Case, runs: &[Run]) -> Self {
        let by_policy = runs.chunk_by(|one, other| one.policy == other.policy);
        let policies = beside_each_other(by_policy.map(Row::new).collect());
        let mut seeds: Vec<u64> = runs.iter().map(|it| it.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        Self {
            workload: case.name.clone(),
            about: case.about,
            routers: case.setting.routers,
            load_age_s: case.setting.gauges_every.as_secs_f64(),
            seeds,
            setting: set::words(&case.setting),
            ranks_of_a_worker: case.setting.fleet.ranks,
            without: without(&policies),
            policies,
        }
    }

    /// Ours with its own numbers, where it ran.
    pub(super) fn ours(&self) -> Option<&Row> {
        let mut rows = self.policies.iter();
        rows.find(|it| it.figures.policy == placement::Policy::KV)
    }
}

/// Says of each how it stands to the others.
pub(super) fn beside_each_other(mut rows: Vec<Row>) -> Vec<Row> {
    let best = |of: fn(&Row) -> Option<f64>| rows.iter().filter_map(of).reduce(f64::min);
    let p50 = best(|it| it.figures.ttft_ms.p50);
    let p99 = best(|it| it.figures.ttft_ms.p99);
    let front: Vec<bool> = rows.iter().map(|it| it.is_on_front(&rows)).collect();
    for (row, front) in rows.iter_mut().zip(front) {
        row.on_pareto_front = front;
        row.ttft_p50_over_best = over(row.figures.ttft_ms.p50, p50);
        row.ttft_p99_over_best = over(row.figures.ttft_ms.p99, p99);
    }
    rows
}

impl Row {
    pub(super) fn new(runs: &[Run]) -> Self {
        let reports: Vec<&Report> = runs.iter().map(|it| &it.report).collect();
        let mean = |of: fn(&Report) -> Option<f64>| {
            let values: Vec<f64> = reports.iter().filter_map(|it| of(it)).collect();
            let sum: f64 = values.iter().sum();
            (!values.is_empty()).then(|| sum / values.len() as f64)
        };
        let spread = |of: fn(&Report) -> Option<f64>| {
            let values = || reports.iter().filter_map(|it| of(it));
            Some([values().reduce(f64::min)?, values().reduce(f64::max)?])
        };
        let p50 = |it: &Report| ttft_ms(it, 0.50);
        let p99 = |it: &Report| ttft_ms(it, 0.99);
        let reached = |it: &Report| it.totals.realised_over_ceiling();
        let mut totals = Totals::default();
        reports.iter().for_each(|it| totals.merge(&it.totals));
        let errors = reports.iter().map(|it| it.errors + it.broken).sum();
        let ttft = Quantiles {
            p50: mean(p50),
            p99: mean(p99),
        };
        let work = mean(Report::work_max_over_mean);
        let policy = runs.first().map_or(placement::Policy::KV, |it| it.policy);
        Self {
            figures: PolicyReport::new(policy, errors, &totals, ttft, work),
            runs: runs.len(),
            ttft_mean_ms: mean(|it| it.ttft_mean().map(|it| it * 1e3)),
            ttft_p50_over_best: None,
            ttft_p99_over_best: None,
            on_pareto_front: false,
            queue_skew: mean(Report::queue_max_over_mean_in_a_worker),
            queue_skew_of_all: mean(Report::queue_max_over_mean),
            queue_skew_at_once: mean(Report::queue_skew),
            pending_skew: mean(Report::pending_max_over_mean_in_a_worker),
            pending_skew_at_once: mean(Report::pending_skew),
            busy: mean(|it| Some(it.busy)),
            idle_share: mean(Report::idle_share),
            step_s: mean(|it| it.step.map(|it| it.as_secs_f64())),
            decode_tokens_per_s: mean(Report::decode_throughput),
            kept: mean(|it| Some(it.kept as f64 / it.requests.max(1) as f64)),
            took_s: mean(|it| Some(it.took.as_secs_f64())),
            gap: Shares::of(&Gap::of(&totals)),
            spread: Spread {
                ttft_p50_ms: spread(p50),
                ttft_p99_ms: spread(p99),
                realised_over_ceiling: spread(reached),
            },
        }
    }

    /// The share of the ceiling, where anything could be cached.
    pub(super) fn hit(&self) -> Option<f64> {
        self.figures.realised_over_ceiling
    }

    fn is_on_front(&self, all: &[Self]) -> bool {
        let (Some(ttft), Some(hit)) = (self.figures.ttft_ms.p50, self.hit()) else {
            return false;
        };
        !all.iter().any(|other| {
            let (Some(their), Some(theirs)) = (other.figures.ttft_ms.p50, other.hit()) else {
                return false;
            };
            their <= ttft && hit <= theirs && (their < ttft || hit < theirs)
        })
    }
}

impl Shares {
    fn of(gap: &Gap) -> Self {
        let share = |part| gap.share(part);
        Self {
            memory: share(gap.memory),
            router: share(gap.router),
            index: share(gap.index),
            unavailable: share(gap.unavailable),
            in_flight: share(gap.in_flight),
        }
    }
}

fn ttft_ms(report: &Report, share: f64) -> Option<f64> {
    report.ttft_quantile(share).map(|it| it.as_secs_f64() * 1e3)
}

fn over(value: Option<f64>, best: Option<f64>) -> Option<f64> {
    Some(value? / best.filter(|it| 0.0 < *it)?)
}
