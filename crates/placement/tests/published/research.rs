//! `smetric`, `preble_e2`, `mooncake_conductor` and `aibrix`.

use super::table::check;

#[test]
fn smetric_places_a_first_turn_by_work_times_requests() {
    let targets = "w1 held=800 A=3 | 800\nw2 | 1000";
    check("smetric", "", targets, "w1", "least_cost");
    let targets = "w1 held=800 A=5 | 1200\nw2 | 1000";
    check("smetric", "", targets, "w2", "least_cost");
    let targets = "w1 held=800 A=5 | 200\nw2 | 1000";
    check("smetric:colocated=0", "", targets, "w1", "least_cost");
    let targets = "w1 held=600 | 720\nw2 | 1500";
    check("smetric:c2=0.001", "", targets, "w1", "least_cost");
}

#[test]
fn smetric_follows_the_prefix_of_a_later_turn_while_the_promise_is_kept() {
    let check = |targets, chosen, reason| check("smetric", "stuck=w2", targets, chosen, reason);
    check("w1 held=600 P=9600 | 10000\nw2 | 1000", "w1", "stuck");
    check("w1 held=600 P=9601 | 10001\nw2 | 1000", "w2", "least_cost");
    check(
        "w1 held=600 P=20000 | 20400\nw2 P=9001 | 10001",
        "w1",
        "stuck",
    );
}

#[test]
fn smetric_follows_no_prefix_shorter_than_half_of_what_is_expected() {
    let targets = "w1 held=500 P=2000 | 2500\nw2 | 1000";
    check("smetric", "stuck=w1", targets, "w2", "least_cost");
    let targets = "w1 held=504 P=2000 | 2496\nw2 | 1000";
    check("smetric", "stuck=w1", targets, "w1", "stuck");
    check("smetric", "stuck=w1 last=1008", targets, "w2", "least_cost");
}

#[test]
fn e2_exploits_a_prefix_longer_than_what_is_missing() {
    let targets = "w1 held=504 H=300 | 300\nw2 H=200 | 200";
    check("preble_e2", "", targets, "w1", "least_cost");
    let targets = "w1 held=600 H=300 | 300\nw2 held=600 H=200 | 200\nw3 H=150 | 150";
    check("preble_e2", "", targets, "w2", "least_cost");
}

#[test]
fn e2_hands_work_of_the_heaviest_to_the_lightest() {
    let targets = "w1 held=600 H=401 | 401\nw2 H=200 | 200\nw3 H=300 | 300";
    check("preble_e2", "", targets, "w2", "overflow");
    let targets = "w1 held=600 H=400 | 400\nw2 H=200 | 200\nw3 H=300 | 300";
    check("preble_e2", "", targets, "w1", "least_cost");
    let targets = "w1 held=600 H=401 | 401\nw2 H=200 | 200\nw3 H=500 | 500";
    check("preble_e2", "", targets, "w1", "least_cost");
}

#[test]
fn e2_explores_by_work_of_the_window_evictions_and_what_is_missing() {
    let targets = "w1 held=500 H=300 resident=800 capacity=1000 | 950
                   w2                                           | 1000";
    check("preble_e2", "", targets, "w1", "least_cost");
    let targets = "w1 held=500 H=300 resident=1000 capacity=1000 | 1050
                   w2                                            | 1000";
    check("preble_e2", "", targets, "w2", "least_cost");
}

#[test]
fn conductor_estimates_queue_and_prefill_in_seconds() {
    let check = |targets, chosen| check("mooncake_conductor", "", targets, chosen, "least_cost");
    check("w1 held=800 P=500 | 0.7\nw2 | 1", "w1");
    check("w1 held=800 P=900 | 1.1\nw2 | 1", "w2");
    check("w1 held=800 P=900 rate=2000 | 0.55\nw2 | 1", "w1");
}

#[test]
fn conductor_fetches_what_another_holds_much_more_of() {
    let fetching = "mooncake_conductor:fetch_rate=10000";
    let targets = "w1 held=800 P=500 | 0.7\nw2 | 0.28";
    check(fetching, "", targets, "w2", "least_cost");
    let targets = "w1 held=800 P=500 | 0.7\nw2 held=400 | 0.6";
    check(fetching, "", targets, "w2", "least_cost");
    let targets = "w1 held=800 P=500 | 0.7\nw2 held=396 | 0.2404";
    check(fetching, "", targets, "w2", "least_cost");
    let slow = "mooncake_conductor:fetch_rate=1000";
    let targets = "w1 held=800 P=500 | 0.7\nw2 | 1";
    check(slow, "", targets, "w1", "least_cost");
}

#[test]
fn aibrix_drops_locality_where_loads_are_far_apart() {
    let targets = "w1 | 0\nw2 held=800 A=17 | 17";
    check("aibrix", "", targets, "w1", "least_cost");
    let targets = "w1 | 0\nw2 held=800 A=16 | -800";
    check("aibrix", "", targets, "w2", "least_cost");
}

#[test]
fn aibrix_passes_by_one_two_deviations_above_the_mean() {
    let fleet = |busiest: u32| {
        let mut lines = vec![format!("w0 held=800 A={busiest} | -800")];
        lines.push("w1 held=100 A=1 | -100".to_owned());
        lines.extend((2..10).map(|it| format!("w{it} A=1 | 0")));
        lines.join("\n")
    };
    check("aibrix", "", &fleet(11), "w1", "least_cost");
    check("aibrix:sigmas=3", "", &fleet(11), "w0", "least_cost");
}

#[test]
fn aibrix_prefers_the_less_busy_of_equal_matches() {
    let targets = "w1 held=800 A=3 | -800\nw2 held=800 A=2 | -800\nw3 | 0";
    check("aibrix", "", targets, "w2", "least_cost");
    let targets = "w1 A=1 | 0\nw2 | 0\nw3 | 0";
    check("aibrix", "", targets, "w2 w3", "near_tie_of_2");
}
