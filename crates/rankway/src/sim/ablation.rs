//! What each term of our cost is worth: what changes where it is switched off.

use std::fmt::Write as _;

use serde::Serialize;

use super::compared::{Compared, Row};
use super::plan::TERMS;
use super::table::head;
use crate::report::human_ms;

/// Changes up to these are none: of times as a share of the whole term's, of the share of the ceiling, of the work.
const OF_TIME: f64 = 0.01;
const OF_HIT: f64 = 0.002;
const OF_WORK: f64 = 0.02;

/// What differs in one workload without one term, each from the cost with all its terms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Without {
    pub(super) term: &'static str,
    /// Times to first token, as a share: 0.1 is ten percent longer.
    pub(super) ttft_mean: Option<f64>,
    pub(super) ttft_p50: Option<f64>,
    pub(super) ttft_p99: Option<f64>,
    /// The share of the ceiling.
    pub(super) hit: Option<f64>,
    /// The busiest rank's work over the mean.
    pub(super) work: Option<f64>,
}

/// In how many workloads a term pays, and in how many it costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Worth {
    pub(super) term: &'static str,
    pub(super) workloads: usize,
    pub(super) ttft_mean: Tally,
    pub(super) ttft_p50: Tally,
    pub(super) ttft_p99: Tally,
    pub(super) hit: Tally,
    pub(super) work: Tally,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Where it is worse without the term.
    pub(super) pays: usize,
    /// Where it is better without.
    pub(super) costs: usize,
}

impl Tally {
    /// Of changes of which more than `limit` is for the worse.
    fn of(changes: impl Iterator<Item = Option<f64>>, limit: f64) -> Self {
        let mut tally = Self::default();
        for change in changes.flatten() {
            tally.pays += usize::from(limit < change);
            tally.costs += usize::from(change < -limit);
        }
        tally
    }
}

/// Each term that was switched off, in the order of [`TERMS`].
pub(super) fn without(rows: &[Row]) -> Vec<Without> {
    let named = |name: &str| {
        let mut rows = rows.iter();
        rows.find(|it| it.figures.policy.to_string() == name)
    };
    let Some(whole) = named("kv") else {
        return Vec::new();
    };
    let each = TERMS.iter().filter_map(|term| {
        let row = named(&format!("kv:{term}=0"))?;
        let longer = |of: fn(&Row) -> Option<f64>| {
            let whole = of(whole).filter(|it| 0.0 < *it)?;
            Some(of(row)? / whole - 1.0)
        };
        let more = |of: fn(&Row) -> Option<f64>| Some(of(row)? - of(whole)?);
        Some(Without {
            term,
            ttft_mean: longer(|it| it.ttft_mean_ms),
            ttft_p50: longer(|it| it.figures.ttft_ms.p50),
            ttft_p99: longer(|it| it.figures.ttft_ms.p99),
            hit: more(Row::hit),
            work: more(|it| it.figures.work_max_over_mean),
        })
    });
    each.collect()
}

/// Each term over all workloads.
pub(super) fn worth(compared: &[Compared]) -> Vec<Worth> {
    let each = TERMS.iter().filter_map(|term| {
        let all = compared.iter().flat_map(|it| &it.without);
        let of: Vec<&Without> = all.filter(|it| it.term == *term).collect();
        (!of.is_empty()).then(|| Worth {
            term,
            workloads: of.len(),
            ttft_mean: Tally::of(of.iter().map(|it| it.ttft_mean), OF_TIME),
            ttft_p50: Tally::of(of.iter().map(|it| it.ttft_p50), OF_TIME),
            ttft_p99: Tally::of(of.iter().map(|it| it.ttft_p99), OF_TIME),
            hit: Tally::of(of.iter().map(|it| it.hit.map(|it| -it)), OF_HIT),
            work: Tally::of(of.iter().map(|it| it.work), OF_WORK),
        })
    });
    each.collect()
}

/// One workload: ours as it is, and what differs without each term.
pub(super) fn table(compared: &Compared) -> String {
    let mut text = head(compared);
    let row = |text: &mut String, cells: [String; 6]| {
        let [name, mean, p50, p99, hit, work] = cells;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  {name:<14}{mean:>11}{p50:>11}{p99:>11}{hit:>10}{work:>10}"
        );
    };
    let names = ["without", "TTFT mean", "p50", "p99", "hit", "work"];
    row(&mut text, names.map(str::to_owned));
    let shown = |value: Option<f64>, show: fn(f64) -> String| value.map_or("-".to_owned(), show);
    if let Some(ours) = compared.ours() {
        let cells = [
            "(nothing)".to_owned(),
            shown(ours.ttft_mean_ms, human_ms),
            shown(ours.figures.ttft_ms.p50, human_ms),
            shown(ours.figures.ttft_ms.p99, human_ms),
            shown(ours.hit(), |it| format!("{it:.3}")),
            shown(ours.figures.work_max_over_mean, |it| format!("{it:.2}")),
        ];
        row(&mut text, cells);
    }
    for it in &compared.without {
        let percent = |value| shown(value, |it| format!("{:+.1} %", it * 100.0));
        let cells = [
            it.term.to_owned(),
            percent(it.ttft_mean),
            percent(it.ttft_p50),
            percent(it.ttft_p99),
            shown(it.hit, |it| format!("{it:+.3}")),
            shown(it.work, |it| format!("{it:+.2}")),
        ];
        row(&mut text, cells);
    }
    text
}

/// What each term comes to, a line each.
pub(super) fn conclusion(worth: &[Worth]) -> Vec<String> {
    let workloads = worth.iter().map(|it| it.workloads).max().unwrap_or(0);
    let mut lines = vec![
        format!(
            "in how many of {workloads} workloads a term pays / costs: without it TTFT is more than"
        ),
        format!(
            "{:.0} % longer / shorter, hit {OF_HIT} lower / higher, work {OF_WORK} higher / lower",
            OF_TIME * 100.0
        ),
        format!(
            "  {:<14}{:>11}{:>11}{:>11}{:>10}{:>10}",
            "term", "TTFT mean", "p50", "p99", "hit", "work"
        ),
    ];
    lines.extend(worth.iter().map(|it| {
        let cell = |it: Tally| format!("{} / {}", it.pays, it.costs);
        format!(
            "  {:<14}{:>11}{:>11}{:>11}{:>10}{:>10}",
            it.term,
            cell(it.ttft_mean),
            cell(it.ttft_p50),
            cell(it.ttft_p99),
            cell(it.hit),
            cell(it.work)
        )
    }));
    lines
}
