//! Each policy's decisions, computed by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bound;
mod home;
mod names;

use std::collections::BTreeSet;

use domain::{BlockSize, Target, TargetState, Tokens};
use placement::{
    Barred, Candidate, Choice, Held, Hint, NoCandidate, Obligation, Place, Policy, Reason, Request,
    Snapshot, Tally, choose,
};

/// An idle rank that computes 1,000 tokens a second and holds nothing.
fn idle(target: &str) -> Candidate {
    Candidate {
        target: target.parse().unwrap(),
        state: TargetState::Ready,
        barred: None,
        block_size: BlockSize::new(16).unwrap(),
        held: Held::default(),
        presumed: Tokens::ZERO,
        index_known: true,
        has_events: true,
        in_flight: Tokens::ZERO,
        pending: Tokens::ZERO,
        foreign: Tokens::ZERO,
        active: 0,
        gauge: None,
        tally: Tally::default(),
        resident: Tokens::ZERO,
        capacity: None,
        overdue: 0.0,
        utilisation: 0.0,
        obligation: Obligation::default(),
        prefill_rate: 1_000.0,
        decode_step: 0.0,
    }
}

fn held(tokens: u64) -> Held {
    let tokens = Tokens::new(tokens);
    Held {
        gpu: tokens,
        host: tokens,
        disk: tokens,
    }
}

fn snapshot(candidates: Vec<Candidate>) -> Snapshot {
    Snapshot {
        candidates,
        turn: 0,
        reuse: 0.5,
    }
}

/// The same, of which the index says nothing.
fn unknown(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    for candidate in &mut candidates {
        candidate.index_known = false;
    }
    candidates
}

/// Four ranks on workers of their own.
fn four() -> Vec<Candidate> {
    ["w1#1/0", "w2#1/0", "w3#1/0", "w4#1/0"].map(idle).into()
}

const REQUEST: Request = Request {
    isl: Tokens::new(10_000),
    conversation: None,
    hint: None,
    stuck: None,
};

fn kv(snapshot: &Snapshot) -> Choice {
    choose(&REQUEST, snapshot, Policy::KV, 7).unwrap()
}

fn chosen(choice: &Choice) -> String {
    choice.place.target().unwrap().to_string()
}

#[test]
fn round_robin_names_each_worker_in_turn_and_no_rank() {
    let ranks = ["w1#1/0", "w1#1/1", "w2#4/0", "w2#4/1"].map(idle);
    let mut snapshot = snapshot(ranks.into());
    let mut workers = Vec::new();
    for turn in 0..4 {
        snapshot.turn = turn;
        let choice = choose(&REQUEST, &snapshot, Policy::RoundRobin, 0).unwrap();
        assert_eq!(choice.place.target(), None);
        workers.push(choice.place.worker().to_string());
    }
    assert_eq!(workers, ["w1", "w2", "w1", "w2"]);
}

#[test]
fn target_round_robin_names_each_rank_in_turn() {
    let ranks = ["w1#1/0", "w1#1/1", "w2#4/0"].map(idle);
    let mut snapshot = snapshot(ranks.into());
    let targets = [0, 1, 2, 3].map(|turn| {
        snapshot.turn = turn;
        chosen(&choose(&REQUEST, &snapshot, Policy::TargetRoundRobin, 0).unwrap())
    });
    assert_eq!(targets, ["w1#1/0", "w1#1/1", "w2#4/0", "w1#1/0"]);
}

#[test]
fn random_draws_every_worker_about_equally_often() {
    let snapshot = snapshot(four());
    let mut counts = [0_u32; 4];
    for seed in 0..4_000 {
        let choice = choose(&REQUEST, &snapshot, Policy::Random, seed).unwrap();
        assert!(matches!(choice.place, Place::Worker { .. }));
        let name = choice.place.worker().as_str();
        counts[usize::from(name.as_bytes()[1] - b'1')] += 1;
    }
    assert!(
        counts.iter().all(|it| (900..1_100).contains(it)),
        "{counts:?}"
    );
}

#[test]
fn power_of_two_never_chooses_the_busiest_and_mostly_the_idlest() {
    let mut candidates = four();
    for (candidate, active) in candidates.iter_mut().zip([3, 1, 2, 0]) {
        candidate.active = active;
    }
    let snapshot = snapshot(candidates);
    let mut counts = [0_u32; 4];
    for seed in 0..4_000 {
        let choice = choose(&REQUEST, &snapshot, Policy::PowerOfTwo, seed).unwrap();
        let name = choice.place.worker().as_str();
        counts[usize::from(name.as_bytes()[1] - b'1')] += 1;
    }
    // Of the six pairs the idlest is in three, the next wins two, the third one.
    assert_eq!(counts[0], 0);
    assert!((1_900..2_100).contains(&counts[3]), "{counts:?}");
    assert!((1_233..1_433).contains(&counts[1]), "{counts:?}");
}

#[test]
fn every_term_of_a_cost_is_computed_as_documented() {
    let mut target = idle("w1#1/0");
    target.held = Held {
        gpu: Tokens::new(2_000),
        host: Tokens::new(4_000),
        disk: Tokens::new(6_000),
    };
    target.pending = Tokens::new(500);
    target.foreign = Tokens::new(500);
    target.active = 10;
    target.decode_step = 0.02;
    target.resident = Tokens::new(9_000);
    target.capacity = Some(Tokens::new(10_000));
    target.utilisation = 0.5;
    let mut sibling = idle("w1#1/1");
    sibling.pending = Tokens::new(3_000);
    let choice = kv(&snapshot(vec![target, sibling]));
    let terms = choice.scores[0].terms;
    assert_eq!(terms.credited, Tokens::new(6_000));
    assert_eq!(terms.uncached, Tokens::new(4_000));
    assert_eq!(terms.pending, 1.0);
    assert_eq!(terms.miss, 4.0);
    let (again, later, share) = (1.0, 3.5 * 0.25 / 0.75, 4.0 * 0.5 / 0.3);
    let delay = 4.0 * (again + later + share);
    assert_eq!(terms.delay, delay, "the mean is 0.25");
    assert_eq!(terms.transfer, 2_000.0 / 200_000.0 + 2_000.0 / 20_000.0);
    assert_eq!(terms.lockstep, 2.0, "it ends at 5 s, its sibling at 3 s");
    assert_eq!(terms.decode, 0.2);
    assert_eq!(
        terms.capacity,
        4.0 * 3.0 * 0.5,
        "3,000 tokens evicted, half of them wanted again"
    );
    let sum = 1.0 + 4.0 + delay + terms.transfer + 2.0 + 0.2 + 6.0;
    assert!((choice.scores[0].cost - sum).abs() < 1e-9);
}

#[test]
fn the_rank_that_holds_the_prefix_serves_unless_its_queue_costs_more() {
    let mut candidates = four();
    candidates[1].held = held(8_000);
    candidates[1].pending = Tokens::new(3_500);
    let choice = kv(&snapshot(candidates.clone()));
    assert_eq!(chosen(&choice), "w2#1/0", "3.5 + 3 x 2 s against 3 x 10 s");
    assert_eq!(choice.reason, Reason::LeastCost);
    candidates[1].pending = Tokens::new(25_000);
    assert_ne!(chosen(&kv(&snapshot(candidates))), "w2#1/0");
}

/// Load is no reason to forget where the prefix is.
#[test]
fn imbalance_elsewhere_does_not_override_locality() {
    let mut candidates = four();
    for (candidate, active) in candidates.iter_mut().zip([10, 11, 30, 10]) {
        candidate.active = active;
        candidate.decode_step = 0.02;
    }
    candidates[1].held = held(8_000);
    assert_eq!(chosen(&kv(&snapshot(candidates))), "w2#1/0");
}

#[test]
fn a_prefix_in_flight_is_worth_as_much_as_one_held() {
    let mut candidates = four();
    candidates[2].in_flight = Tokens::new(8_000);
    candidates[2].pending = Tokens::new(8_000);
    let choice = kv(&snapshot(candidates));
    assert_eq!(choice.scores[2].terms.uncached, Tokens::new(2_000));
    assert_eq!(chosen(&choice), "w3#1/0");
}

#[test]
fn a_suspect_rank_is_believed_by_half_and_a_partial_one_wholly() {
    let credited = |state| {
        let mut candidates = four();
        candidates[0].held = held(8_000);
        candidates[0].state = state;
        kv(&snapshot(candidates)).scores[0].terms.credited.get()
    };
    assert_eq!(credited(TargetState::Ready), 8_000);
    assert_eq!(credited(TargetState::Partial), 8_000);
    assert_eq!(credited(TargetState::Suspect), 4_000);
}

#[test]
fn warming_draining_gone_and_tried_ranks_take_nothing_new() {
    use TargetState::{Draining, Gone, Warming};
    let mut candidates = four();
    for (candidate, state) in candidates.iter_mut().zip([Warming, Draining, Gone]) {
        candidate.held = held(9_984);
        candidate.state = state;
    }
    for policy in Policy::ALL.iter().copied() {
        let snapshot = snapshot(candidates.clone());
        let choice = choose(&REQUEST, &snapshot, policy, 3).unwrap();
        assert_eq!(choice.place.worker().as_str(), "w4", "{policy}");
        assert_eq!(choice.scores.len(), 1);
    }
    candidates[3].barred = Some(Barred::Tried);
    for policy in Policy::ALL.iter().copied() {
        let choice = choose(&REQUEST, &snapshot(candidates.clone()), policy, 3);
        assert_eq!(choice, Err(NoCandidate), "{policy}");
    }
}

#[test]
fn a_rank_that_failed_lately_serves_only_when_all_did() {
    let mut candidates = four();
    candidates[0].held = held(9_984);
    candidates[0].barred = Some(Barred::FailedLately);
    assert_ne!(chosen(&kv(&snapshot(candidates.clone()))), "w1#1/0");
    for candidate in &mut candidates {
        candidate.barred = Some(Barred::FailedLately);
    }
    assert_eq!(chosen(&kv(&snapshot(candidates))), "w1#1/0");
}

#[test]
fn near_ties_are_drawn_by_the_seed_and_spread() {
    let snapshot = snapshot(four());
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for seed in 0..4_000 {
        let choice = choose(&REQUEST, &snapshot, Policy::KV, seed).unwrap();
        assert_eq!(choice.reason, Reason::NearTie { among: 4 });
        *counts.entry(chosen(&choice)).or_default() += 1;
    }
    assert_eq!(counts.len(), 4);
    assert!(
        counts.values().all(|it| (900..1_100).contains(it)),
        "{counts:?}"
    );
}

#[test]
fn in_a_near_tie_a_private_prefix_counts_and_one_held_everywhere_does_not() {
    let pair = |pending: u64, held_by_first: u64, held_by_all: u64| {
        let mut candidates = vec![idle("w1#1/0"), idle("w2#1/0")];
        candidates
            .iter_mut()
            .for_each(|it| it.held = held(held_by_all));
        candidates[0].held = held(held_by_all + held_by_first);
        candidates[0].pending = Tokens::new(pending);
        let choice = kv(&snapshot(candidates));
        assert_eq!(choice.reason, Reason::NearTie { among: 2 });
        chosen(&choice)
    };
    assert_eq!(pair(960, 320, 0), "w1#1/0", "rare blocks decide");
    assert_eq!(
        pair(320, 0, 320),
        "w2#1/0",
        "common ones do not: the idler does"
    );
}

#[test]
fn with_a_silent_index_equals_are_ordered_by_the_conversation() {
    let mut snapshot = snapshot(unknown(four()));
    let place = |snapshot: &Snapshot, conversation, seed| {
        let request = Request {
            conversation: Some(conversation),
            ..REQUEST
        };
        let choice = choose(&request, snapshot, Policy::KV, seed).unwrap();
        let among = u32::try_from(snapshot.candidates.len()).unwrap();
        assert_eq!(choice.reason, Reason::Rendezvous { among });
        chosen(&choice)
    };
    let before: Vec<String> = (0..1_000).map(|it| place(&snapshot, it, 1)).collect();
    let again: Vec<String> = (0..1_000).map(|it| place(&snapshot, it, 2)).collect();
    assert_eq!(before, again, "no seed matters, so routers agree");
    snapshot.candidates.remove(2);
    let lost = before.iter().filter(|it| *it == "w3#1/0").count();
    assert!((200..300).contains(&lost), "{lost} of 1,000 on one of four");
    let after = (0..1_000).map(|it| place(&snapshot, it, 1));
    let moved = after
        .zip(&before)
        .filter(|(after, before)| after != *before);
    assert_eq!(moved.count(), lost, "only those of the lost one move");
}

#[test]
fn where_the_index_says_nothing_of_one_of_several_equals_routers_agree_too() {
    let mut candidates = four();
    candidates[1].index_known = false;
    let place = |candidates: &[Candidate], conversation, seed| {
        let request = Request {
            conversation: Some(conversation),
            ..REQUEST
        };
        choose(&request, &snapshot(candidates.to_vec()), Policy::KV, seed).unwrap()
    };
    for conversation in 0..50 {
        let choice = place(&candidates, conversation, 1);
        assert_eq!(choice.reason, Reason::Rendezvous { among: 4 });
        assert_eq!(choice.place, place(&candidates, conversation, 2).place);
    }
    candidates[0].held = held(9_000);
    let choice = place(&candidates, 1, 1);
    assert_eq!(
        choice.reason,
        Reason::LeastCost,
        "what is known to be held counts"
    );
    assert_eq!(chosen(&choice), "w1#1/0");
}

#[test]
fn a_hint_decides_between_equals_and_costs_nothing() {
    let hinted = |hint: &Hint, snapshot: &Snapshot, seed| {
        let request = Request {
            hint: Some(hint.clone()),
            ..REQUEST
        };
        choose(&request, snapshot, Policy::KV, seed).unwrap()
    };
    let mut snapshot = snapshot(four());
    let parent = Hint::Near("w3#1/0".parse().unwrap());
    for seed in 0..50 {
        let choice = hinted(&parent, &snapshot, seed);
        assert_eq!(chosen(&choice), "w3#1/0");
        assert_eq!(choice.reason, Reason::Hinted { among: 4 });
    }
    let bucket = |key| chosen(&hinted(&Hint::Bucket(key), &snapshot, key));
    let places: BTreeSet<String> = (0..100).map(bucket).collect();
    assert_eq!(places.len(), 4, "buckets are spread");
    let again = chosen(&hinted(&Hint::Bucket(7), &snapshot, 1));
    assert_eq!(again, bucket(7), "no seed matters, so routers agree");

    snapshot.candidates[2].pending = Tokens::new(9_000);
    let choice = hinted(&parent, &snapshot, 1);
    assert_ne!(chosen(&choice), "w3#1/0", "a busy parent is left alone");
    snapshot.candidates[2].state = TargetState::Draining;
    let choice = hinted(&parent, &snapshot, 1);
    assert_ne!(chosen(&choice), "w3#1/0", "one that takes nothing new too");
}

#[test]
fn a_full_cache_is_dearer_than_one_with_room() {
    let mut candidates = four();
    candidates.truncate(2);
    for candidate in &mut candidates {
        candidate.capacity = Some(Tokens::new(50_000));
    }
    candidates[0].resident = Tokens::new(50_000);
    let choice = kv(&snapshot(candidates));
    assert_eq!(chosen(&choice), "w2#1/0");
    assert_eq!(choice.reason, Reason::LeastCost);
}

#[test]
fn no_candidates_is_an_error_for_every_policy() {
    for policy in Policy::ALL.iter().copied() {
        let choice = choose(&REQUEST, &snapshot(Vec::new()), policy, 0);
        assert_eq!(choice, Err(NoCandidate));
    }
}

#[test]
fn a_target_keeps_its_place_in_rendezvous_across_restarts() {
    let place = |epoch: u32| {
        let targets = (1..=4).map(|it| idle(&format!("w{it}#{epoch}/0")));
        let snapshot = snapshot(unknown(targets.collect()));
        let request = Request {
            conversation: Some(99),
            ..REQUEST
        };
        let choice = choose(&request, &snapshot, Policy::KV, 0).unwrap();
        let target: Target = chosen(&choice).parse().unwrap();
        target.worker
    };
    assert_eq!(place(1), place(2));
}
