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
    serializer.collect_str(policy)
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

    /// The tokens at each of [`DESTINATIONS`].
    fn destinations(&self) -> [i128; 8] {
        let lost = &self.lost;
        [
            self.tokens.realised.into(),
            lost.cold.into(),
            lost.in_flight.into(),
            lost.unannounced.into(),
            lost.capacity.into(),
            lost.unavailable.into(),
            lost.routing.into(),
            lost.index_error.into(),
        ]
    }

    /// Whether they sum to all input tokens, to the token.
    pub(crate) fn adds_up(&self) -> bool {
        self.destinations().iter().sum::<i128>() == i128::from(self.tokens.isl)
    }
}

/// Where input tokens can go.
const DESTINATIONS: [&str; 8] = [
    "cached",
    "cold",
    "in flight",
    "unannounced",
    "capacity",
    "unavailable",
    "routing",
    "index error",
];

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
    /// A table with a row for each policy, then where each one's tokens went with a column for each. Both are
    /// at most 80 columns wide.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let share = |value: Option<f64>| value.map_or("-".to_owned(), |it| format!("{it:.3}"));
        let time = |value: Option<f64>| value.map_or("-".to_owned(), human_ms);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<19}{:>9}{:>7}{:>12}{:>10}{:>10}{:>12}",
            "policy", "requests", "errors", "of ceiling", "TTFT p50", "TTFT p99", "work spread"
        );
        for it in &self.policies {
            let _ = writeln!(
                text,
                "{:<19}{:>9}{:>7}{:>12}{:>10}{:>10}{:>12}",
                it.policy.to_string(),
                it.requests,
                it.errors,
                share(it.realised_over_ceiling),
                time(it.ttft_ms.p50),
                time(it.ttft_ms.p99),
                share(it.work_max_over_mean),
            );
        }
        let _ = writeln!(
            text,
            "(work spread: what the busiest rank computed over the mean of all)\n"
        );
        text + &self.destinations()
    }

    fn destinations(&self) -> String {
        let widths = self
            .policies
            .iter()
            .map(|it| it.policy.to_string().len().max(5) + 2);
        let widths: Vec<usize> = widths.collect();
        let row = |title: &str, cells: Vec<String>| {
            let cells = cells.iter().zip(&widths);
            let cells = cells.map(|(cell, width)| format!("{cell:>width$}"));
            format!("{title:<13}{}\n", cells.collect::<String>())
        };
        let names = self.policies.iter().map(|it| it.policy.to_string());
        let mut text = "where the input tokens went, in percent:\n".to_owned();
        text += &row("", names.collect());
        for (number, title) in DESTINATIONS.iter().enumerate() {
            let percent = |it: &PolicyReport| {
                let whole = it.tokens.isl.max(1) as f64;
                format!("{:.1}", 100.0 * it.destinations()[number] as f64 / whole)
            };
            text += &row(title, self.policies.iter().map(percent).collect());
        }
        text
    }

    /// What `kv` reached, next to the first other policy; none where it did not run.
    pub(crate) fn headline(&self) -> Option<String> {
        let is_ours = |it: &&PolicyReport| !it.policy.is_baseline();
        let ours = self.policies.iter().find(is_ours)?;
        let mut said = Vec::new();
        let other = self.policies.iter().find(|it| !is_ours(it));
        if let Some(other) = other
            && let (Some(theirs), Some(mine)) = (other.ttft_ms.p50, ours.ttft_ms.p50)
        {
            let name = other.policy;
            said.push(match theirs / mine {
                ratio if ratio >= 9.95 => format!("{ratio:.0}x lower median TTFT than {name}"),
                ratio if ratio >= 1.05 => format!("{ratio:.1}x lower median TTFT than {name}"),
                _ => format!("no lower median TTFT than {name}"),
            });
        }
        if let Some(reached) = ours.realised_over_ceiling {
            said.push(format!("{reached:.3} of the ceiling"));
        }
        Some(format!("kv: {}", said.join(", ")))
    }

    /// What a negative part means, where there is one.
    pub(crate) fn index_error_note(&self) -> Option<&'static str> {
        let negative = self.policies.iter().any(|it| it.lost.index_error < 0);
        negative.then_some("a negative index error means the engine found more than promised")
    }
}

/// Milliseconds as people read them.
pub(crate) fn human_ms(ms: f64) -> String {
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

#[cfg(test)]
mod tests {
    use accounting::Totals;
    use placement::Policy;

    use super::{Comparison, PolicyReport, Quantiles};

    fn comparison(policies: &[(Policy, f64)]) -> Comparison {
        let report = |(policy, p50): &(Policy, f64)| {
            let ttft = Quantiles {
                p50: Some(*p50),
                p99: Some(*p50),
            };
            PolicyReport::new(*policy, 0, &Totals::default(), ttft, Some(1.0))
        };
        Comparison {
            workload: "test".to_owned(),
            policies: policies.iter().map(report).collect(),
        }
    }

    #[test]
    fn tables_of_policies_fit_into_80_columns() {
        let policies = [
            "round_robin",
            "target_round_robin",
            "random",
            "power_of_two",
            "kv",
        ];
        let policies = policies.map(|it| (it.parse().expect("a policy"), 123_456.0));
        let table = comparison(&policies).table();

        for line in table.lines() {
            assert!(line.len() <= 80, "{line}");
        }
    }

    #[test]
    fn the_headline_compares_kv_with_the_first_other_policy() {
        let check = |policies: &[(Policy, f64)], says: Option<&str>| {
            assert_eq!(comparison(policies).headline().as_deref(), says);
        };
        let (kv, random) = (Policy::KV, Policy::Random);

        check(&[(random, 1.0)], None);
        check(
            &[(kv, 10.0), (random, 134.0), (Policy::RoundRobin, 1.0)],
            Some("kv: 13x lower median TTFT than random"),
        );
        check(
            &[(random, 15.0), (kv, 10.0)],
            Some("kv: 1.5x lower median TTFT than random"),
        );
        check(
            &[(random, 9.0), (kv, 10.0)],
            Some("kv: no lower median TTFT than random"),
        );
    }
}
