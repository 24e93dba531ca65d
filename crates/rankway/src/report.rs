//! What `demo` and `replay` say of a policy: the same numbers as JSON and as a table.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use accounting::Totals;
use placement::Policy;
use serde::Serialize;

/// One run of one or more policies over one workload.
#[derive(Serialize)]
pub(crate) struct Comparison {
    pub(crate) workload: String,
    pub(crate) policies: Vec<PolicyReport>,
}

/// One policy's numbers. Token counts are of full blocks; see ARCHITECTURE.md on the waterfall.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PolicyReport {
    #[serde(serialize_with = "policy_name")]
    pub(crate) policy: Policy,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) tokens: Levels,
    /// Where the difference between `isl` and `realised` went; the parts sum to it exactly.
    pub(crate) lost: Lost,
    pub(crate) realised_over_ceiling: Option<f64>,
    pub(crate) ceiling_over_isl: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ceiling_of_hash_ids: Option<f64>,
    pub(crate) ttft_ms: Quantiles,
    pub(crate) work_max_over_mean: Option<f64>,
}

/// The levels of the waterfall, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Levels {
    pub(crate) isl: u64,
    pub(crate) ceiling: u64,
    pub(crate) stored: u64,
    pub(crate) best: u64,
    pub(crate) ready: u64,
    pub(crate) chosen: u64,
    pub(crate) realised: u64,
}

/// The parts of the waterfall, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Lost {
    pub(crate) cold: u64,
    pub(crate) in_flight: u64,
    pub(crate) unannounced: u64,
    pub(crate) capacity: u64,
    pub(crate) unavailable: u64,
    pub(crate) routing: u64,
    pub(crate) index_error: i64,
}

/// Quantiles in milliseconds; none when nothing was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
}

fn policy_name<S: serde::Serializer>(policy: &Policy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy.name())
}

impl PolicyReport {
    /// Puts together what a run measured. The levels are those of the requests whose engine reported cached
    /// tokens, so that they can be compared with each other.
    pub(crate) fn new(
        policy: Policy,
        errors: u64,
        totals: &Totals,
        ttft: Quantiles,
        work_max_over_mean: Option<f64>,
    ) -> Self {
        let sums = totals.measured;
        let parts = sums.parts;
        Self {
            policy,
            requests: totals.all().requests,
            errors,
            tokens: Levels {
                isl: sums.isl.get(),
                ceiling: sums.ceiling.get(),
                stored: sums.stored.get(),
                best: sums.best.get(),
                ready: sums.ready.get(),
                chosen: sums.chosen.get(),
                realised: sums.realised.get(),
            },
            lost: Lost {
                cold: parts.cold.get(),
                in_flight: parts.in_flight.get(),
                unannounced: parts.unannounced.get(),
                capacity: parts.capacity.get(),
                unavailable: parts.unavailable.get(),
                routing: parts.routing.get(),
                index_error: parts.index_error.unwrap_or(0),
            },
            realised_over_ceiling: totals.realised_over_ceiling(),
            ceiling_over_isl: totals.ceiling_over_isl(),
            ceiling_of_hash_ids: None,
            ttft_ms: ttft,
            work_max_over_mean,
        }
    }

    /// Whether the parts of the waterfall sum to what was not realised, to the token.
    pub(crate) fn adds_up(&self) -> bool {
        let lost = &self.lost;
        let unsigned = [
            lost.cold,
            lost.in_flight,
            lost.unannounced,
            lost.capacity,
            lost.unavailable,
            lost.routing,
        ];
        let sum = i128::from(unsigned.iter().sum::<u64>()) + i128::from(lost.index_error);
        sum == i128::from(self.tokens.isl) - i128::from(self.tokens.realised)
    }
}

impl Quantiles {
    /// Of durations in ascending order.
    pub(crate) fn of(sorted: &[Duration]) -> Self {
        let at = |share: f64| {
            let last = sorted.len().checked_sub(1)?;
            // A float to integer cast saturates.
            let index = ((share * last as f64).round() as usize).min(last);
            Some(sorted[index].as_secs_f64() * 1e3)
        };
        Self {
            p50: at(0.50),
            p99: at(0.99),
        }
    }
}

impl Comparison {
    /// A table with a row for each policy, then where each one's tokens went.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let share = |value: Option<f64>| value.map_or("-".to_owned(), |it| format!("{it:.3}"));
        let time = |value: Option<f64>| value.map_or("-".to_owned(), human_ms);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<20}{:>9}{:>8}{:>16}{:>11}{:>11}{:>15}",
            "policy",
            "requests",
            "errors",
            "of the ceiling",
            "TTFT p50",
            "TTFT p99",
            "work max/mean"
        );
        for it in &self.policies {
            let _ = writeln!(
                text,
                "{:<20}{:>9}{:>8}{:>16}{:>11}{:>11}{:>15}",
                it.policy.name(),
                it.requests,
                it.errors,
                share(it.realised_over_ceiling),
                time(it.ttft_ms.p50),
                time(it.ttft_ms.p99),
                share(it.work_max_over_mean),
            );
        }
        let _ = writeln!(text, "\nwhere the input tokens went, in percent:");
        let _ = writeln!(
            text,
            "{:<20}{:>9}{:>8}{:>11}{:>13}{:>10}{:>13}{:>9}{:>13}",
            "policy",
            "cached",
            "cold",
            "in flight",
            "unannounced",
            "capacity",
            "unavailable",
            "routing",
            "index error"
        );
        for it in &self.policies {
            let whole = it.tokens.isl.max(1) as f64;
            let part = |tokens: i128| format!("{:.1}", 100.0 * tokens as f64 / whole);
            let _ = writeln!(
                text,
                "{:<20}{:>9}{:>8}{:>11}{:>13}{:>10}{:>13}{:>9}{:>13}",
                it.policy.name(),
                part(it.tokens.realised.into()),
                part(it.lost.cold.into()),
                part(it.lost.in_flight.into()),
                part(it.lost.unannounced.into()),
                part(it.lost.capacity.into()),
                part(it.lost.unavailable.into()),
                part(it.lost.routing.into()),
                part(it.lost.index_error.into()),
            );
        }
        text
    }
}

fn human_ms(ms: f64) -> String {
    if ms >= 10_000.0 {
        format!("{:.1} s", ms / 1e3)
    } else {
        format!("{ms:.0} ms")
    }
}

/// Prints one JSON object as one line.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let line = serde_json::to_string(value)?;
    print_line(&line)
}

/// Prints a line to standard output; a reader that has gone away is no error.
pub(crate) fn print_line(line: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout().lock(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
