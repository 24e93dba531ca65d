//! `llmd_affinity` and `llmd_blend`.

use super::table::check;

#[test]
fn affinity_waits_for_a_prefix_up_to_its_limit() {
    let targets = "w1 held=900 P=18000 | 18100\nw2 | 1000";
    check("llmd_affinity", "", targets, "w1", "least_cost");
    let targets = "w1 held=900 P=18001 | 18101\nw2 | 1000";
    check("llmd_affinity", "", targets, "w2", "least_cost");
    let targets = "w1 held=900 P=18001 rate=2000 | 18101\nw2 | 1000";
    check("llmd_affinity", "", targets, "w1", "least_cost");
    let targets = "w1 held=900 P=1001 | 1101\nw2 | 1000";
    let hasty = "llmd_affinity:seconds=1";
    check(hasty, "", targets, "w2", "least_cost");
}

#[test]
fn affinity_prefers_nobody_below_its_gate() {
    let targets = "w1 held=796 P=900 | 1104\nw2 | 1000";
    check("llmd_affinity", "", targets, "w2", "least_cost");
    let targets = "w1 held=800 P=900 | 1100\nw2 | 1000";
    check("llmd_affinity", "", targets, "w1", "least_cost");
}

#[test]
fn affinity_chooses_by_work_or_by_requests_among_those_it_considers() {
    let targets = "w1 held=800 P=300 | 500\nw2 held=900 P=500 | 600\nw3 | 1000";
    check("llmd_affinity", "", targets, "w1", "least_cost");
    let targets = "w1 held=800 A=5 | 5\nw2 held=900 A=4 | 4\nw3 | 0";
    let decoding = "llmd_affinity:decode_bound=1";
    check(decoding, "", targets, "w2", "least_cost");
}

#[test]
fn affinity_considers_all_where_all_hold_the_request() {
    let targets = "w1 held=900 P=90000 | 90100\nw2 held=800 P=50 | 250";
    check("llmd_affinity", "", targets, "w2", "least_cost");
}

#[test]
fn blend_sums_its_scorers() {
    let targets = "w1 held=500 waiting=4 used=0.5 | -3.5
                   w2 waiting=0 used=0.25         | -4.5";
    check("llmd_blend", "", targets, "w2", "least_cost");
    let targets = "w1 held=500 waiting=4 used=0.5 | -5
                   w2 waiting=0 used=0.25         | -4.5";
    check("llmd_blend:prefix=6", "", targets, "w1", "least_cost");
}

#[test]
fn blend_takes_what_was_sent_for_what_is_used_without_a_gauge() {
    let targets = "w1 held=1000 resident=500 capacity=1000 | -7
                   w2                                      | -5";
    check("llmd_blend", "", targets, "w1", "least_cost");
}

#[test]
fn blend_sends_cold_requests_to_whom_none_was_sent_longest() {
    let targets = "w1 cold=10 | -5\nw2 | -6\nw3 cold=20 | -4";
    check("llmd_blend", "", targets, "w2", "least_cost");
    let targets = "w1 cold=10 | -6\nw2 cold=30 | -4\nw3 cold=20 | -5";
    check("llmd_blend", "", targets, "w1", "least_cost");
    let targets = "w1 | -6\nw2 | -6\nw3 cold=20 | -4";
    check("llmd_blend", "", targets, "w1 w2", "near_tie_of_2");
}
