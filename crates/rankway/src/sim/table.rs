//! A case as text.

use std::fmt::Write as _;

use super::compared::{Compared, Row};
use crate::report::human_ms;

/// The widest name of a policy in full.
const NAME: usize = 20;

/// A table with a row for each policy, the fastest first, at most 80 columns wide.
pub(super) fn table(compared: &Compared) -> String {
    let steps = compared.policies.iter().any(|it| it.step_s.is_some());
    let mut text = head(compared);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "  {:<NAME$}{:>10}{:>10}{:>10}{:>8}{:>7}",
        "policy", "TTFT p50", "p99", "mean", "hit", "work"
    );
    text += if steps { "    step\n" } else { "    skew\n" };
    let mut rows: Vec<&Row> = compared.policies.iter().collect();
    let p50 = |it: &Row| it.figures.ttft_ms.p50.unwrap_or(f64::INFINITY);
    rows.sort_by(|one, other| p50(one).total_cmp(&p50(other)));
    for row in rows {
        let time = |it: Option<f64>| it.map_or("-".to_owned(), human_ms);
        let share = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it:.3}"));
        let ratio = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it:.2}"));
        let last = match steps {
            true => row.step_s.map_or("-".to_owned(), |it| format!("{it:.0} s")),
            false if compared.ranks_of_a_worker == 1 => ratio(row.queue_skew_of_all),
            false => ratio(row.queue_skew),
        };
        let _ = write!(
            text,
            "{} {:<NAME$}{:>10}{:>10}{:>10}{:>8}{:>7}{last:>8}",
            if row.on_pareto_front { '*' } else { ' ' },
            cut(&row.figures.policy.to_string()),
            time(row.figures.ttft_ms.p50),
            time(row.figures.ttft_ms.p99),
            time(row.ttft_mean_ms),
            share(row.hit()),
            ratio(row.figures.work_max_over_mean),
        );
        if row.figures.errors > 0 {
            let _ = write!(text, " {} errors", row.figures.errors);
        }
        text.push('\n');
    }
    text + &skews(compared) + &gaps(compared)
}

/// How unevenly the ranks of a worker are used under ours, where they wait for each other.
fn skews(compared: &Compared) -> String {
    let ours = compared.ours().filter(|_| compared.ranks_of_a_worker > 1);
    let Some(row) = ours else {
        return String::new();
    };
    let ratio = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it:.2}"));
    format!(
        "  kv, busiest rank over its worker's mean: requests {} (at each moment {}),\n  tokens that wait to be computed {} (at each moment {})\n",
        ratio(row.queue_skew),
        ratio(row.queue_skew_at_once),
        ratio(row.pending_skew),
        ratio(row.pending_skew_at_once),
    )
}

pub(super) fn head(compared: &Compared) -> String {
    let Compared {
        workload, about, ..
    } = compared;
    let requests = compared.policies.iter().map(|it| it.figures.requests);
    let requests = requests.max().unwrap_or(0) / compared.seeds.len().max(1) as u64;
    let ceiling = compared
        .policies
        .first()
        .and_then(|it| it.figures.ceiling_over_isl);
    let ceiling = ceiling.map_or("-".to_owned(), |it| format!("{it:.3}"));
    let seeds: Vec<String> = compared.seeds.iter().map(u64::to_string).collect();
    let seeds = seeds.join(",");
    let setting: Vec<String> = compared
        .setting
        .iter()
        .map(|it| format!("  {it}\n"))
        .collect();
    let setting = setting.concat();
    format!(
        "{workload}: {about}\n{setting}  {requests} requests, {ceiling} of their tokens carried before; seeds {seeds}\n"
    )
}

/// Whose what was lost is, where one policy shows it.
fn gaps(compared: &Compared) -> String {
    let [only] = &compared.policies[..] else {
        return String::new();
    };
    let gap = &only.gap;
    let parts = [
        ("memory", gap.memory),
        ("router", gap.router),
        ("index", gap.index),
        ("unavailable", gap.unavailable),
        ("in flight", gap.in_flight),
    ];
    let parts = parts
        .iter()
        .filter_map(|(name, share)| Some(format!("{name} {:.2}", (*share)?)));
    let parts: Vec<String> = parts.collect();
    format!("  of what was lost of the ceiling: {}\n", parts.join(", "))
}

/// As much of a name as there is room for.
fn cut(name: &str) -> String {
    match name.chars().count() < NAME {
        true => name.to_owned(),
        false => name.chars().take(NAME - 2).chain(['~']).collect(),
    }
}
