//! `trt_kv_adp` and `trt_conv_adp`.

use super::table::check;

#[test]
fn kv_adp_weighs_what_is_missing_with_the_share_of_load() {
    let check = |targets, chosen| check("trt_kv_adp", "", targets, chosen, "least_cost");
    check(
        "w1 held=800 P=500 | 700
         w2 P=100          | 1100",
        "w1",
    );
    check(
        "w1 held=900 P=3000 | 850
         w2 P=1000          | 1250",
        "w1",
    );
    check(
        "w1 held=200 P=800 | 1600
         w2 P=200          | 1200",
        "w2",
    );
}

#[test]
fn kv_adp_counts_no_prefix_up_to_the_gate() {
    let targets = "w1 held=100 P=4 | 1004\nw2 | 1000";
    check("trt_kv_adp", "", targets, "w2", "least_cost");
    let targets = "w1 held=104 P=4 | 900\nw2 | 1000";
    check("trt_kv_adp", "", targets, "w1", "least_cost");
    let targets = "w1 held=104 P=4 | 1004\nw2 | 1000";
    check("trt_kv_adp:gate=0.2", "", targets, "w2", "least_cost");
}

#[test]
fn kv_adp_gives_nothing_to_a_rank_with_twice_its_share() {
    let check = |policy, targets, chosen, reason| check(policy, "", targets, chosen, reason);
    let busy = "w1 held=1000 A=4 | 0\nw2 A=1 | 1000\nw3 A=1 | 1000\nw4 | 1000";
    check("trt_kv_adp", busy, "w2 w3 w4", "near_tie_of_3");
    let less_busy = "w1 held=1000 A=3 | 0\nw2 A=1 | 1000\nw3 A=1 | 1000\nw4 | 1000";
    check("trt_kv_adp", less_busy, "w1", "least_cost");
    check("trt_kv_adp:fair=3", busy, "w1", "least_cost");
}

#[test]
fn conv_adp_keeps_a_conversation_above_the_fair_limit_below_the_hard_one() {
    let targets = "w1 A=50 | 50\nw2 | 0";
    check("trt_conv_adp", "stuck=w1", targets, "w1", "stuck");
    let targets = "w1 A=2047 | 2047\nw2 | 0";
    check("trt_conv_adp", "stuck=w1", targets, "w1", "stuck");
    let targets = "w1 A=2048 | 2048\nw2 | 0";
    check("trt_conv_adp", "stuck=w1", targets, "w2", "overflow");
}

#[test]
fn conv_adp_sends_what_overflows_to_the_next_in_turn_with_room() {
    let targets = "w1 A=8 | 8\nw2 A=1 | 1\nw3 A=1 | 1";
    for (turn, chosen) in [(0, "w2"), (1, "w3"), (2, "w2")] {
        let request = format!("stuck=w1 turn={turn}");
        check("trt_conv_adp:hard=8", &request, targets, chosen, "overflow");
    }
}

#[test]
fn conv_adp_places_new_ones_in_turn_under_the_fair_limit() {
    let targets = "w1 A=8 | 8\nw2 | 0\nw3 A=1 | 1";
    for (turn, chosen) in [(0, "w2"), (1, "w3"), (2, "w2")] {
        let request = format!("turn={turn}");
        check("trt_conv_adp", &request, targets, chosen, "turn");
    }
    let targets = "w1 A=5 | 5\nw2 | 0\nw3 A=1 | 1";
    check("trt_conv_adp", "turn=0", targets, "w1", "turn");
    check("trt_conv_adp", "turn=0 stuck=w9", targets, "w1", "turn");
}

#[test]
fn conv_adp_may_place_new_ones_where_least_is_pending() {
    let targets = "w1 P=500 | 500\nw2 P=300 | 300\nw3 P=100 A=9 | 100";
    let least = "trt_conv_adp:least_queued=1";
    check(least, "", targets, "w2", "least_cost");
}
