//! `dynamo`.

use super::table::{Case, check};

/// Six requests to one worker of two ranks that the live service was asked for: blocks of 4 tokens, and rank 1 holds the
/// first two of them. What is pending and active before each follows from where the service put those before.
#[test]
fn the_six_steps_seen_on_the_live_service_are_taken_again() {
    let check = |isl, rank0: &str, rank1: &str, chosen| {
        let request = format!("isl={isl} block=4");
        let targets = format!("w0 {rank0}\nw1 {rank1}");
        check("dynamo", &request, &targets, chosen, "least_cost");
    };
    check(12, "| 6", "held=8 | 4", "w1");
    check(16, "| 8", "held=8 | 6", "w1");
    check(16, "| 8", "held=8 P=8 blocks=4 joined=3 | 9", "w0");
    check(
        16,
        "P=16 blocks=4 joined=3 | 13",
        "held=8 P=8 blocks=4 joined=3 | 9",
        "w1",
    );
    check(
        16,
        "P=16 blocks=4 joined=3 | 13",
        "held=8 P=16 blocks=5 joined=3 | 12",
        "w1",
    );
    check(12, "P=16 blocks=4 | 14", "P=24 blocks=6 | 18", "w0");
}

#[test]
fn credit_fades_with_the_backlog_above_the_least() {
    let targets = "w1 held=8 P=8 | 4\nw2 | 4";
    check("dynamo", "isl=8", targets, "w1 w2", "near_tie_of_2");
    let targets = "w1 held=8 P=8 | 5\nw2 | 4";
    check("dynamo:decay=1", "isl=8", targets, "w2", "least_cost");
    let targets = "w1 held=8 P=24 | 9\nw2 P=16 | 8";
    check("dynamo:decay=1", "isl=8", targets, "w2", "least_cost");
}

#[test]
fn prefill_is_never_less_than_none() {
    let targets = "w1 held=4 | 1\nw2 | 2";
    check("dynamo:credit=1.3", "isl=4", targets, "w1", "least_cost");
    let targets = "w1 held=8 P=40 | 12\nw2 P=40 | 14";
    check("dynamo:credit=5", "isl=8", targets, "w1", "least_cost");
}

#[test]
fn slower_tiers_are_credited_in_part() {
    let targets = "w1 gpu=4 host=12 disk=16 | 5.25
                   w2 gpu=8 host=8 disk=8   | 6";
    check("dynamo", "isl=16", targets, "w1", "least_cost");
    let targets = "w1 gpu=4 host=12 disk=16 | 7
                   w2 gpu=8 host=8 disk=8   | 6";
    check(
        "dynamo:host=0,disk=0",
        "isl=16",
        targets,
        "w2",
        "least_cost",
    );
}

#[test]
fn active_blocks_count_once_where_they_are_joined() {
    let targets = "w1 blocks=10 joined=3 | 15
                   w2 blocks=8           | 16";
    check("dynamo", "isl=16", targets, "w1", "least_cost");
    let targets = "w1 blocks=10 joined=3 A=4 | 23
                   w2 blocks=8 A=1           | 18";
    check("dynamo:active=2", "isl=16", targets, "w2", "least_cost");
    let targets = "w1 blocks=10 joined=3 | 13
                   w2 blocks=8           | 14";
    check("dynamo:prefill=0.5", "isl=16", targets, "w1", "least_cost");
}

#[test]
fn a_temperature_draws_the_cheaper_more_often() {
    let share = |policy: &str, targets: &str| {
        let case = Case::read("isl=8", targets);
        let choices = (0..4_000).map(|seed| case.choice(policy, seed));
        let first = choices.filter(|it| it.place.worker().as_str() == "w1");
        first.count() as f64 / 4_000.0
    };
    let apart = "w1 held=8\nw2 P=8";
    assert!((share("dynamo:temperature=1", apart) - 0.731).abs() < 0.025);
    assert!((share("dynamo:temperature=0.25", apart) - 0.982).abs() < 0.025);
    assert!((share("dynamo:temperature=1", "w1\nw2") - 0.5).abs() < 0.025);
    assert!((share("dynamo", apart) - 1.0).abs() < 1e-9);
}
