//! How far ahead of its peers the index is meant to be, and whether it is.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::contest::Kind;
use crate::report::Row;

/// A case, which of its cells count, and by what factor each peer is to be beaten in every one of them.
struct Goal {
    what: &'static str,
    case: &'static str,
    targets: Option<u32>,
    depth: Option<usize>,
    /// CRTC, Positional, kv-index.
    factors: [f64; 3],
}

/// A share of 50 % of a peer's memory is a factor of two.
const GOALS: [Goal; 8] = [
    goal(
        "lookup, groups, 64 targets x 512 blocks",
        "lookup",
        Some(64),
        Some(512),
        [4.5, 25.0, 1.5],
    ),
    goal(
        "lookup, groups, 512 x 512",
        "lookup",
        Some(512),
        Some(512),
        [11.0, 30.0, 1.9],
    ),
    goal(
        "lookup by sequence hashes, 4096 blocks, p50",
        "lookup by sequence hashes, p50",
        None,
        Some(4096),
        [20.0, 300.0, 12.0],
    ),
    goal("store", "store", None, None, [1.5, 3.5, 1.3]),
    goal("remove", "remove", None, None, [1.25, 3.3, 1.0]),
    goal("traces with drain", "trace", None, None, [1.6, 7.0, 1.5]),
    goal(
        "memory, depth 512, foreign engine hashes",
        "memory, foreign",
        None,
        Some(512),
        [2.0, 5.0, 1.0 / 0.6],
    ),
    goal(
        "memory, depth 512, canonical engine hashes",
        "memory, canonical",
        None,
        Some(512),
        [1.0 / 0.33, 1.0 / 0.12, 1.0 / 0.42],
    ),
];

const fn goal(
    what: &'static str,
    case: &'static str,
    targets: Option<u32>,
    depth: Option<usize>,
    factors: [f64; 3],
) -> Goal {
    Goal {
        what,
        case,
        targets,
        depth,
        factors,
    }
}

const PEERS: [Kind; 3] = [Kind::Crtc, Kind::Positional, Kind::KvIndex];

/// Below this share of the best peer's speed, a cell is a failure by itself.
const LEAST_OF_BEST: f64 = 0.75;
/// Cases whose cells that holds for.
const GUARDED: [&str; 8] = [
    "lookup",
    "lookup by sequence hashes",
    "lookup, hash map",
    "store",
    "remove",
    "mixed 1:1",
    "mixed 10:1",
    "trace",
];
/// Cells of the mixed case in which our slowest lookups may not be slower than the best peer's.
const CELLS_OF_P99: usize = 7;
/// How many more instructions a lookup may take when memberships double.
const GROWTH: f64 = 1.05;

/// What came of one goal.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The goal, with the peer.
    pub what: String,
    /// The figure it asks for.
    pub target: f64,
    /// The figure of its worst cell.
    pub worst: f64,
    /// The figure of the middle of its cells.
    pub median: f64,
    /// Whether every cell reaches it.
    pub met: bool,
}

/// What came of every goal that `rows` speak of.
pub fn findings(rows: &[Row]) -> Vec<Finding> {
    let mut found = Vec::new();
    for goal in &GOALS {
        for (peer, target) in PEERS.into_iter().zip(goal.factors) {
            let cells = rows.iter().filter(|it| goal.covers(it));
            let ratios: Vec<f64> = cells.filter_map(|it| it.ratio(peer)).collect();
            let what = format!("{}: {} / ours", goal.what, peer.name());
            found.extend(at_least(what, target, ratios));
        }
    }
    let guarded = |it: &&Row| GUARDED.contains(&case_of(it));
    let ratios = rows
        .iter()
        .filter(guarded)
        .filter_map(Row::ratio_of_best)
        .collect();
    let what = "every cell: best peer / ours".to_owned();
    found.extend(at_least(what, LEAST_OF_BEST, ratios));
    found.extend(slowest_lookups(rows));
    found.extend(growth(rows));
    found
}

/// The case without the name of a trace.
fn case_of(row: &Row) -> &str {
    match row.case.strip_prefix("trace ") {
        Some(rest) if !rest.contains(", ") => "trace",
        _ => &row.case,
    }
}

impl Goal {
    fn covers(&self, row: &Row) -> bool {
        case_of(row) == self.case
            && self.targets.is_none_or(|it| it == row.targets)
            && self.depth.is_none_or(|it| it == row.depth)
    }
}

fn at_least(what: String, target: f64, ratios: Vec<f64>) -> Option<Finding> {
    let worst = ratios.iter().copied().min_by(f64::total_cmp)?;
    Some(Finding {
        what,
        target,
        worst,
        median: crate::clock::median(ratios),
        met: target <= worst,
    })
}

fn slowest_lookups(rows: &[Row]) -> Option<Finding> {
    let cells = rows.iter().filter(|it| it.case == "mixed 1:1, lookup p99");
    let ratios: Vec<f64> = cells.filter_map(Row::ratio_of_best).collect();
    let good = ratios.iter().filter(|it| 1.0 <= **it).count();
    let needed = CELLS_OF_P99.min(ratios.len());
    (!ratios.is_empty()).then(|| Finding {
        what: format!(
            "mixed 1:1, lookup p99: cells of {} no worse than the best peer",
            ratios.len()
        ),
        target: needed as f64,
        worst: good as f64,
        median: good as f64,
        met: needed <= good,
    })
}

fn growth(rows: &[Row]) -> Option<Finding> {
    let cells = rows.iter().filter(|it| it.case.starts_with("growth"));
    let ours: Vec<f64> = cells
        .filter_map(|it| it.of.get(&Kind::Ours).copied())
        .collect();
    let worst = ours.iter().copied().max_by(f64::total_cmp)?;
    Some(Finding {
        what: "a lookup's cost when memberships double, at most".to_owned(),
        target: GROWTH,
        worst,
        median: crate::clock::median(ours),
        met: worst < GROWTH,
    })
}

/// The findings as a table.
pub fn table(findings: &[Finding]) -> String {
    let mut text = format!(
        "\n{:<62} {:>7} {:>7} {:>7}\n",
        "ratio (peer over ours, of medians of CPU time)", "target", "worst", "median"
    );
    for it in findings {
        let verdict = match (it.met, it.target <= it.median) {
            (true, _) => "met",
            (false, true) if it.what.contains('/') => "NOT in every cell",
            (false, _) => "NOT met",
        };
        let Finding {
            what,
            target,
            worst,
            median,
            ..
        } = it;
        let _ = writeln!(
            text,
            "{what:<62} {target:>7.2} {worst:>7.2} {median:>7.2}  {verdict}"
        );
    }
    text
}

/// The findings as the last line of `--json`; whether all is well is null where nothing was compared.
pub fn summary(findings: &[Finding]) -> Value {
    let ok = (!findings.is_empty()).then(|| findings.iter().all(|it| it.met));
    let ratio = |it: &Finding| json!({"what": it.what, "target": it.target, "worst": it.worst, "median": it.median, "met": it.met});
    json!({
        "bench": "index",
        "ok": ok,
        "ratios": findings.iter().map(ratio).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, targets: u32, depth: usize, figures: [f64; 4]) -> Row {
        Row {
            case: case.to_owned(),
            targets,
            depth,
            unit: "ns",
            of: Kind::ALL.into_iter().zip(figures).collect(),
        }
    }

    fn verdict(rows: &[Row], what: &str) -> bool {
        let all = findings(rows);
        all.iter()
            .find(|it| it.what.starts_with(what))
            .expect(what)
            .met
    }

    #[test]
    fn a_goal_is_met_when_its_worst_cell_reaches_it() {
        let good = row("store", 8, 32, [100.0, 200.0, 400.0, 140.0]);
        let bad = row("store", 8, 512, [100.0, 140.0, 400.0, 140.0]);

        assert!(verdict(std::slice::from_ref(&good), "store: crtc"));
        assert!(!verdict(&[good.clone(), bad.clone()], "store: crtc"));
        assert!(verdict(&[good, bad], "store: kv_index"));
    }

    #[test]
    fn only_the_cells_a_goal_names_count() {
        let named = row("lookup", 64, 512, [100.0, 500.0, 2600.0, 160.0]);
        let other = row("lookup", 64, 32, [100.0, 100.0, 100.0, 100.0]);

        assert!(verdict(&[named, other], "lookup, groups, 64"));
    }

    #[test]
    fn a_trace_counts_but_not_what_else_is_said_of_it() {
        let drained = row("trace conversation", 64, 92, [100.0, 170.0, 800.0, 160.0]);
        let issued = row(
            "trace conversation, issued only",
            64,
            92,
            [100.0, 10.0, 10.0, 10.0],
        );

        assert!(verdict(&[drained, issued], "traces with drain: crtc"));
    }

    #[test]
    fn a_cell_far_behind_the_best_peer_and_growth_are_failures() {
        let slow = row("mixed 10:1", 8, 32, [100.0, 200.0, 200.0, 74.0]);
        let grown = row("growth of a lookup", 64, 512, [1.06, 1.0, 1.0, 1.0]);

        assert!(!verdict(&[slow], "every cell"));
        assert!(!verdict(&[grown], "a lookup's cost"));
    }

    #[test]
    fn memory_is_a_share_of_the_peers() {
        let half = row("memory, foreign", 64, 512, [25.0, 50.0, 130.0, 42.0]);

        assert!(verdict(
            std::slice::from_ref(&half),
            "memory, depth 512, foreign engine hashes: crtc"
        ));
        assert!(verdict(
            std::slice::from_ref(&half),
            "memory, depth 512, foreign engine hashes: kv"
        ));
    }
}
