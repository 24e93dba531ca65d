//! Rows of results, as tables for people and as JSON for machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::contest::Kind;

/// One measured case: a figure for each structure, of which the smaller is the better.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was measured.
    pub case: String,
    /// Targets in the fleet.
    pub targets: u32,
    /// Blocks of a conversation or, of a trace, of a request on average.
    pub depth: usize,
    /// What the figures count.
    pub unit: &'static str,
    /// The figures.
    pub of: BTreeMap<Kind, f64>,
}

impl Row {
    /// How many times as much as ours `peer` takes.
    pub fn ratio(&self, peer: Kind) -> Option<f64> {
        let (ours, peer) = (self.of.get(&Kind::Ours)?, self.of.get(&peer)?);
        Some(if ours == peer { 1.0 } else { peer / ours })
    }

    /// What the best peer takes over what ours does.
    pub fn ratio_of_best(&self) -> Option<f64> {
        let peers = Kind::ALL.into_iter().filter(|it| *it != Kind::Ours);
        peers.filter_map(|it| self.ratio(it)).min_by(f64::total_cmp)
    }

    /// As one line of `--json`. Ours is null if it was left out.
    pub fn json(&self) -> Value {
        let peers = self.of.iter().filter(|(kind, _)| **kind != Kind::Ours);
        let peers: BTreeMap<&str, f64> = peers.map(|(kind, value)| (kind.name(), *value)).collect();
        json!({
            "case": self.case,
            "targets": self.targets,
            "depth": self.depth,
            "unit": self.unit,
            "ours": self.of.get(&Kind::Ours),
            "peers": peers,
        })
    }
}

/// The rows as a table for each case, in the order in which they came.
pub fn tables(rows: &[Row], kinds: &[Kind]) -> String {
    let mut text = String::new();
    let mut cases: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        if !cases.contains(&(&row.case, row.unit)) {
            cases.push((&row.case, row.unit));
        }
    }
    for (case, unit) in cases {
        let _ = write!(text, "\n{case} [{unit}]\n{:>8} {:>6}", "targets", "depth");
        for kind in kinds {
            let _ = write!(text, " {:>11}", kind.name());
        }
        let _ = writeln!(text, "  best peer/ours");
        for row in rows.iter().filter(|it| it.case == case && it.unit == unit) {
            let _ = write!(text, "{:>8} {:>6}", row.targets, row.depth);
            for kind in kinds {
                let _ = write!(text, " {:>11}", row.of.get(kind).map_or("-".into(), figure));
            }
            let ratio = row.ratio_of_best();
            let _ = writeln!(
                text,
                "  {}",
                ratio.map_or("-".into(), |it| format!("{it:.2}"))
            );
        }
    }
    text
}

/// Four digits or so.
fn figure(value: &f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        ..10.0 => format!("{value:.3}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
