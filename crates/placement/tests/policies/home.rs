//! Conversations of which nobody can say where they are bound.

use std::collections::BTreeSet;

use domain::Tokens;
use placement::{Hint, Policy, Reason, Request, Snapshot, choose};

use crate::{REQUEST, chosen, four, held, snapshot};

#[test]
fn a_conversation_without_a_binding_goes_to_who_holds_most_else_to_its_own_place_and_waits_a_little_for_it()
 {
    let homed = |key, snapshot: &Snapshot, seed| {
        let request = Request {
            hint: Some(Hint::Home(key)),
            ..REQUEST
        };
        choose(&request, snapshot, Policy::KV, seed).unwrap()
    };
    let mut snapshot = snapshot(four());
    let homes: BTreeSet<String> = (0..100)
        .map(|it| chosen(&homed(it, &snapshot, 1)))
        .collect();
    assert_eq!(homes.len(), 4, "conversations are spread");
    let home = chosen(&homed(7, &snapshot, 1));
    let position = |name: &str| {
        let mut candidates = ["w1#1/0", "w2#1/0", "w3#1/0", "w4#1/0"].into_iter();
        candidates.position(|it| it == name).unwrap()
    };
    snapshot.candidates[position(&home)].pending = Tokens::new(1_500);
    for seed in 0..50 {
        assert_eq!(chosen(&homed(7, &snapshot, seed)), home, "1.5 s are waited");
    }
    snapshot.candidates[position(&home)].pending = Tokens::new(3_000);
    assert_ne!(chosen(&homed(7, &snapshot, 1)), home, "3 s are not");

    snapshot.candidates[position(&home)].pending = Tokens::ZERO;
    let other = (position(&home) + 1) % 4;
    snapshot.candidates[other].held = held(16);
    let choice = homed(7, &snapshot, 1);
    assert_eq!(
        choice.place.target(),
        Some(&snapshot.candidates[other].target)
    );
    assert_eq!(choice.reason, Reason::Rendezvous { among: 4 });
}
