//! Fronts and verdicts, from figures made up.

use std::time::Duration;

use accounting::Totals;
use domain::Tokens;
use fleet_sim::{BindingCounts, Report};

use super::ablation::{self, Tally, without, worth};
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
        present_at_most: 0.0,
        busy: 0.0,
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
        setting: Vec::new(),
        ranks_of_a_worker: 1,
        without: Vec::new(),
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
    let herds = Verdict::of(&[herd(1, 100), herd(16, 110)], false).herds;
    assert_eq!(
        (herds[0].policy.as_str(), herds[0].over_one),
        ("dynamo", 1.0)
    );
    assert_eq!(goals(&[herd(1, 100), herd(16, 120)]), [false]);
    assert_eq!(goals(&[herd(16, 120)]), NONE);
}

#[test]
fn all_that_is_judged_has_a_step_that_was_measured() {
    let rollouts = compared("W7", &[("dynamo", 1, 2, 900), ("kv", 1, 2, 900)]);

    let goals = |whole| Verdict::of(std::slice::from_ref(&rollouts), whole).goals;

    let step = |it: &super::verdict::Goal| it.goal.contains("step");
    assert!(!goals(false).iter().any(step));
    let missed = goals(true).into_iter().find(step).expect("it is judged");
    assert!(!missed.ok && missed.value.is_none());
}

#[test]
fn a_term_pays_where_it_is_worse_without_it() {
    let ablated = |workload, made: &[Made]| {
        let one = compared(workload, made);
        Compared {
            without: without(&one.policies),
            ..one
        }
    };
    let all = [
        ablated(
            "a",
            &[
                ("kv", 100, 1_000, 900),
                ("kv:delay=0", 150, 1_000, 890),
                ("kv:again=0", 100, 1_005, 901),
            ],
        ),
        ablated(
            "b",
            &[("kv", 100, 1_000, 900), ("kv:delay=0", 90, 2_000, 910)],
        ),
    ];

    let terms: Vec<&str> = all[0].without.iter().map(|it| it.term).collect();
    assert_eq!(terms, ["again", "delay"]);
    let delay = &all[0].without[1];
    assert_eq!((delay.ttft_p50, delay.ttft_p99), (Some(0.5), Some(0.0)));
    assert!(delay.hit.is_some_and(|it| (it + 0.01).abs() < 1e-9));
    let [again, delay] = &worth(&all)[..] else {
        panic!("two terms were switched off");
    };
    let tally = |pays, costs| Tally { pays, costs };
    assert_eq!((again.workloads, delay.workloads), (1, 2));
    assert_eq!((again.ttft_p99, again.hit), (tally(0, 0), tally(0, 0)));
    assert_eq!(delay.ttft_p50, tally(1, 1));
    assert_eq!(delay.ttft_p99, tally(1, 0));
    assert_eq!(delay.hit, tally(1, 1));
    let shown = [
        ablation::table(&all[0]),
        ablation::conclusion(&worth(&all)).join("\n"),
    ];
    for line in shown.iter().flat_map(|it| it.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(shown[0].contains("+50.0 %"), "{}", shown[0]);
}
