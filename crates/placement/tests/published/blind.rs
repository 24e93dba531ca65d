//! `least_load` and `vllm_dplb`.

use super::table::check;

#[test]
fn least_load_goes_where_least_is_pending_whatever_is_held() {
    let check = |targets, chosen, reason| check("least_load", "", targets, chosen, reason);
    check(
        "w1 P=500           | 500
         w2 P=300           | 300
         w3 P=400 held=1000 | 400",
        "w2",
        "least_cost",
    );
    check(
        "w1 P=100 foreign=300 | 400
         w2 P=350             | 350",
        "w2",
        "least_cost",
    );
    check(
        "w1 P=200 A=9 | 200
         w2 P=900     | 900
         w3 P=200     | 200",
        "w1 w3",
        "near_tie_of_2",
    );
}

#[test]
fn vllm_dplb_counts_waiting_requests_four_times() {
    let check = |targets, chosen, reason| check("vllm_dplb", "", targets, chosen, reason);
    check(
        "w1 waiting=2 running=1 | 9
         w2 waiting=0 running=8 | 8",
        "w2",
        "least_cost",
    );
    check(
        "w1 waiting=1 running=2 A=50 | 6
         w2 A=7                      | 7",
        "w1",
        "least_cost",
    );
    check(
        "w1 waiting=1 running=0 | 4
         w2 waiting=0 running=4 | 4
         w3 waiting=1 running=1 | 5",
        "w1 w2",
        "near_tie_of_2",
    );
}
