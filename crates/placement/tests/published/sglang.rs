//! `sgl_cache_aware` and `sgl_near_min`.

use super::table::check;

#[test]
fn cache_aware_follows_a_prefix_above_the_threshold() {
    let check = |targets, chosen| check("sgl_cache_aware", "", targets, chosen, "least_cost");
    check(
        "w1 held=504 A=5 | -504
         w2 A=3          | 0",
        "w1",
    );
    check(
        "w1 held=500 A=5 | 5
         w2 A=3          | 3",
        "w2",
    );
}

#[test]
fn cache_aware_drops_all_locality_out_of_balance() {
    let targets = "w1 A=10          | 10
                   w2 A=11 held=800 | 11
                   w3 A=30          | 30
                   w4 A=10          | 10";
    check("sgl_cache_aware", "", targets, "w1 w4", "near_tie_of_2");
    let targets = "w1 A=10          | 10
                   w2 A=13 held=800 | 13";
    let recipe = "sgl_cache_aware:threshold=0.3,abs=2,rel=1.1";
    check(recipe, "", targets, "w1", "least_cost");
}

#[test]
fn cache_aware_takes_loads_apart_for_balanced_unless_both_limits_are_passed() {
    let check = |targets, chosen| check("sgl_cache_aware", "", targets, chosen, "least_cost");
    check(
        "w1 A=40          | 0
         w2 A=57 held=900 | -900",
        "w2",
    );
    check(
        "w1 A=1           | 0
         w2 A=17 held=900 | -900",
        "w2",
    );
    check(
        "w1 A=1           | 1
         w2 A=18 held=900 | 18",
        "w1",
    );
}

#[test]
fn near_min_keeps_locality_out_of_balance_among_those_near_the_least_busy() {
    let check = |targets, chosen| check("sgl_near_min", "", targets, chosen, "least_cost");
    check(
        "w1 A=10          | 0
         w2 A=11 held=800 | -800
         w3 A=30          | 0
         w4 A=10          | 0",
        "w2",
    );
    check(
        "w1 A=10          | 0
         w2 A=11 held=100 | -100
         w3 A=30 held=800 | -800
         w4 A=10          | 0",
        "w2",
    );
}

#[test]
fn near_min_goes_to_the_least_busy_where_nobody_near_it_holds_anything() {
    let targets = "w1 A=10          | 10
                   w2 A=11          | 11
                   w3 A=30 held=800 | 30
                   w4 A=10          | 10";
    check("sgl_near_min", "", targets, "w1 w4", "near_tie_of_2");
}

#[test]
fn near_min_in_balance_is_cache_aware() {
    let targets = "w1 held=500 A=5 | 5
                   w2 A=3          | 3";
    check("sgl_near_min", "", targets, "w2", "least_cost");
    let targets = "w1 held=504 A=5 | -504
                   w2 A=3          | 0";
    check("sgl_near_min", "", targets, "w1", "least_cost");
}
