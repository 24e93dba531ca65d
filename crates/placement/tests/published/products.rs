//! `max_overlap`, `lmetric`, `lpwl`, `minmax` and `loadaware`.

use super::table::check;

#[test]
fn max_overlap_follows_the_longest_prefix_into_any_queue() {
    let check = |targets, chosen, reason| check("max_overlap", "", targets, chosen, reason);
    check(
        "w1 held=100                  | -100
         w2 held=800 A=1000 P=1000000 | -800
         w3 held=300                  | -300",
        "w2",
        "least_cost",
    );
    check(
        "w1            | 0
         w2 held=4 A=9 | -4
         w3            | 0",
        "w2",
        "least_cost",
    );
    check("w1 | 0\nw2 A=5 | 0", "w1 w2", "near_tie_of_2");
}

#[test]
fn lmetric_multiplies_what_is_missing_with_the_requests_there() {
    let check = |targets, chosen, reason| check("lmetric", "", targets, chosen, reason);
    check(
        "w1 held=800 A=3 | 800
         w2              | 1000",
        "w1",
        "least_cost",
    );
    check(
        "w1 held=800 A=5 | 1200
         w2              | 1000",
        "w2",
        "least_cost",
    );
    check(
        "w1 held=800 A=4 | 1000
         w2              | 1000",
        "w1 w2",
        "near_tie_of_2",
    );
    check(
        "w1 held=1000 A=900 | 0
         w2 held=996        | 4",
        "w1",
        "least_cost",
    );
}

#[test]
fn lpwl_adds_what_is_missing_to_what_is_pending() {
    let check = |targets, chosen| check("lpwl", "", targets, chosen, "least_cost");
    check(
        "w1 held=800 P=700 | 900
         w2                | 1000",
        "w1",
    );
    check(
        "w1 held=800 P=900 | 1100
         w2                | 1000",
        "w2",
    );
    check(
        "w1 P=200             | 1200
         w2 P=100 foreign=300 | 1400",
        "w1",
    );
}

#[test]
fn minmax_decides_by_work_and_then_by_requests() {
    let check = |targets, chosen, reason| check("minmax", "", targets, chosen, reason);
    check(
        "w1 held=500 P=500 A=5 | 1000
         w2 A=2                | 1000",
        "w2",
        "least_cost",
    );
    check(
        "w1 held=4 P=3 A=100 | 999
         w2                  | 1000",
        "w1",
        "least_cost",
    );
    check(
        "w1 held=500 P=500 A=2 | 1000
         w2 A=2                | 1000
         w3 A=3                | 1000",
        "w1 w2",
        "near_tie_of_2",
    );
}

#[test]
fn loadaware_subtracts_load_above_the_mean_from_the_share_held() {
    let targets = "w1 held=800 A=4 | 0.2
                   w2              | -1";
    check("loadaware", "", targets, "w2", "least_cost");
    let targets = "w1 held=800 A=4 | -0.7
                   w2              | -0.1";
    check("loadaware:beta=0.1", "", targets, "w1", "least_cost");
    let targets = "w1 held=800 A=1 | -0.3
                   w2              | -0.5";
    check("loadaware", "", targets, "w2", "least_cost");
}
