//! `bounded_hash`, `sticky_least` and `verl_margin`.

use std::collections::BTreeSet;

use super::table::{Case, check};

fn place(policy: &str, request: &str, targets: &str, seed: u64) -> String {
    let choice = Case::read(request, targets).choice(policy, seed);
    choice.place.worker().to_string()
}

/// Four targets, of which the one that conversation 7 prefers has `preferred` requests and the others these.
fn loads(preferred: u32, others: [u32; 3]) -> (String, String) {
    let first = place("bounded_hash", "", "w1\nw2\nw3\nw4", 0);
    let mut others = others.into_iter();
    let lines = ["w1", "w2", "w3", "w4"].map(|worker| {
        let active = if worker == first {
            preferred
        } else {
            others.next().unwrap()
        };
        format!("{worker} A={active} | {active}")
    });
    (first, lines.join("\n"))
}

#[test]
fn bounded_hash_stays_up_to_one_and_a_half_times_the_mean() {
    for (preferred, others, among) in [(3, [2, 2, 1], 4), (3, [2, 2, 2], 4), (0, [0, 0, 0], 4)] {
        let (first, targets) = loads(preferred, others);
        let reason = format!("rendezvous_of_{among}");
        check("bounded_hash", "", &targets, &first, &reason);
    }
}

#[test]
fn bounded_hash_walks_on_from_one_beyond_the_bound_always_to_the_same() {
    let mut seconds = BTreeSet::new();
    for (preferred, others) in [(6, [2, 2, 2]), (3, [1, 1, 1]), (100, [20, 20, 20])] {
        let (first, targets) = loads(preferred, others);
        for seed in 0..20 {
            let second = place("bounded_hash", "", &targets, seed);
            assert_ne!(second, first);
            seconds.insert(second);
        }
    }
    assert_eq!(seconds.len(), 1);
}

#[test]
fn bounded_hash_with_another_bound_takes_more() {
    let (first, targets) = loads(6, [2, 2, 2]);
    check("bounded_hash:c=2", "", &targets, &first, "rendezvous_of_4");
}

#[test]
fn bounded_hash_spreads_conversations_and_draws_what_has_none() {
    let place = |request: String| place("bounded_hash", &request, "w1\nw2\nw3\nw4", 0);
    let places = (0..1_000).map(|it| place(format!("conversation={it}")));
    let at_first = places.filter(|it| it == "w1").count();
    assert!((200..300).contains(&at_first), "{at_first}");
    let mut case = Case::read("", "w1\nw2\nw3\nw4");
    case.request.conversation = None;
    let places = (0..64).map(|seed| case.choice("bounded_hash", seed).place.worker().to_string());
    assert_eq!(places.collect::<BTreeSet<_>>().len(), 4);
}

#[test]
fn sticky_least_keeps_a_conversation_whatever_the_load() {
    let targets = "w1 conversations=9  | 9
                   w2 conversations=1  | 1
                   w3 conversations=50 P=900000 A=99 | 50";
    check("sticky_least", "stuck=w3", targets, "w3", "stuck");
}

#[test]
fn sticky_least_places_new_and_lost_ones_by_conversations_not_by_tokens() {
    let targets = "w1 conversations=2          | 2
                   w2 conversations=1 P=900000 | 1
                   w3 conversations=3          | 3";
    check("sticky_least", "", targets, "w2", "least_cost");
    check("sticky_least", "stuck=w9", targets, "w2", "least_cost");
}

#[test]
fn sticky_least_orders_equals_by_the_conversation() {
    let targets = "w1 conversations=1\nw2 conversations=1\nw3 conversations=5";
    let place = |conversation: u64, seed| {
        let request = format!("conversation={conversation}");
        place("sticky_least", &request, targets, seed)
    };
    let places: Vec<String> = (0..100).map(|it| place(it, 1)).collect();
    let again: Vec<String> = (0..100).map(|it| place(it, 2)).collect();
    assert_eq!(places, again);
    let places: BTreeSet<String> = places.into_iter().collect();
    let expected = ["w1", "w2"].map(str::to_owned);
    assert_eq!(places, BTreeSet::from(expected));
}

#[test]
fn verl_margin_stays_up_to_the_margin_and_leaves_beyond_it() {
    let check = |policy, request, targets, chosen, reason| {
        check(policy, request, targets, chosen, reason);
    };
    let at_the_margin = "w1 A=7 | 7\nw2 A=3 | 3\nw3 A=9 | 9";
    let beyond = "w1 A=8 | 8\nw2 A=3 | 3\nw3 A=9 | 9";
    check("verl_margin", "stuck=w1", at_the_margin, "w1", "stuck");
    check("verl_margin", "stuck=w1", beyond, "w2", "least_cost");
    check("verl_margin", "", at_the_margin, "w2", "least_cost");
    check("verl_margin:margin=5", "stuck=w1", beyond, "w1", "stuck");
    let equal = "w1 A=3 | 3\nw2 A=3 | 3";
    check("verl_margin:margin=0", "stuck=w2", equal, "w2", "stuck");
}
