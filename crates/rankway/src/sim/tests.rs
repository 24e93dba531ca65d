//! Fronts and verdicts, from figures made up.

use std::time::Duration;

use accounting::Totals;
use domain::Tokens;
use fleet_sim::{BindingCounts, Report};

use super::compared::{Compared, Row, beside_each_other};
use super::runs::Run;
use super::table::table;
use super::verdict::Verdict;

/// A policy with its TTFT at p50 and p99 in milliseconds and its share of the ceiling in thousandths.
type Made = (&'static str, u64, u64, u64);

fn row(&(policy, p50, p99, hit): &Made) -> Row {
    let mut totals = Totals::default();
    totals.measured.requests = 100;
    totals.measured.ceiling = Tokens::new(1000);
    totals.measured.realised = Tokens::new(hit);
    let mut ttft = vec![Duration::from_millis(p50); 99];
    ttft.push(Duration::from_millis(p99));
    ttft.push(Duration::from_millis(p99));
    let report = Report {
        workload: String::new(),
        policy: policy.parse().expect("a policy"),
        requests: 101,
        errors: 0,
        broken: 0,
        retries: 0,
        totals,
        ttft,
        targets: Vec::new(),
        pending_at_most: 0.0,
        pending_at_most_of_all: 0.0,
        took: Duration::from_secs(1),
        generated: Tokens::ZERO,
        step: None,
        idle_passes: 0,
        passes: 0,
        bindings: BindingCounts::default(),
        kept: 0,
    };
    Row::new(&[Run {
        policy: report.policy,
        seed: 6,
        report,
    }])
}

fn compared(workload: &str, made: &[Made]) -> Compared {
    Compared {
        workload: workload.to_owned(),
        about: "made up",
        routers: 1,
        load_age_s: 0.5,
        seeds: vec![6],
        policies: beside_each_other(made.iter().map(row).collect()),
    }
}

#[test]
fn the_front_is_of_those_that_nobody_beats_in_both() {
    let one = compared(
        "any",
        &[
            ("random", 90, 500, 300),
            ("dynamo", 10, 70, 800),
            ("lpwl", 12, 60, 800),
            ("kv", 20, 50, 990),
        ],
    );

    let front: Vec<bool> = one.policies.iter().map(|it| it.on_pareto_front).collect();
    assert_eq!(front, [false, true, false, true]);
    assert_eq!(one.policies[3].ttft_p50_over_best, Some(2.0));
    assert_eq!(one.policies[0].ttft_p99_over_best, Some(10.0));
    let table = table(&one);
    assert_eq!(table.lines().filter(|it| it.starts_with("* ")).count(), 2);
    assert!(table.lines().all(|it| it.chars().count() <= 80), "{table}");
}

#[test]
fn a_verdict_counts_cells_and_names_the_worst() {
    let all = [
        compared("a", &[("dynamo", 100, 1000, 900), ("kv", 103, 990, 900)]),
        compared("b", &[("dynamo", 100, 1000, 990), ("kv", 95, 1200, 900)]),
    ];

    let verdict = Verdict::of(&all, true);

    assert_eq!(verdict.cells.len(), 4);
    assert_eq!(verdict.cells_within_3_percent, 3);
    let worst = verdict.worst_cell.as_ref().expect("there are cells");
    assert_eq!((worst.workload.as_str(), worst.quantile), ("b", "p99"));
    assert_eq!(worst.best_policy, "dynamo");
    let ok: Vec<bool> = verdict.goals.iter().map(|it| it.ok).collect();
    // One cell may miss; none by so much; in b a policy as fast hits more.
    assert_eq!(ok, [true, false, true, false]);
    assert!(!verdict.ok);
}

#[test]
fn goals_are_of_what_ran() {
    const NONE: [bool; 0] = [];
    let goals = |all: &[Compared]| {
        let goals = Verdict::of(all, false).goals;
        goals.iter().map(|it| it.ok).collect::<Vec<_>>()
    };

    assert_eq!(goals(&[compared("W4", &[("kv", 1, 2, 10)])]), NONE);
    let wide = compared("W3-conversation-32", &[("kv", 1, 2, 960)]);
    assert_eq!(goals(&[wide]), [true]);
    let herd = |routers, ttft| Compared {
        routers,
        load_age_s: 1.0,
        ..compared("herding", &[("dynamo", 1, 1, 900), ("kv", ttft, ttft, 900)])
    };
    assert_eq!(goals(&[herd(1, 100), herd(16, 110)]), [true]);
    assert_eq!(goals(&[herd(1, 100), herd(16, 120)]), [false]);
    assert_eq!(goals(&[herd(16, 120)]), NONE);
}
