//! Conversations keep away from where much is asked by those that are bound there.

use std::collections::BTreeSet;

use placement::{Obligation, Policy, Reason, Request, choose};

use crate::{REQUEST, chosen, four, snapshot};

#[test]
fn of_equals_a_conversation_joins_the_fewest_and_keeps_away_from_the_busiest() {
    let conversation = Request {
        conversation: Some(5),
        ..REQUEST
    };
    let bound = |conversations, tokens| Obligation {
        tokens,
        conversations,
    };
    let mut candidates = four();
    for (candidate, conversations) in candidates.iter_mut().zip([3, 2, 2, 3]) {
        candidate.obligation = bound(conversations, 1.0);
    }
    let mut drawn = BTreeSet::new();
    for seed in 0..100 {
        let snapshot = snapshot(candidates.clone());
        let choice = choose(&conversation, &snapshot, Policy::KV, seed).unwrap();
        assert_eq!(choice.reason, Reason::NearTie { among: 4 });
        drawn.insert(chosen(&choice));
    }
    assert_eq!(drawn, BTreeSet::from(["w2#1/0".into(), "w3#1/0".into()]));

    // Where one of the fewest is busier than the others together, the next fewest are joined.
    candidates[1].obligation = bound(1, 20.0);
    let choice = choose(&conversation, &snapshot(candidates.clone()), Policy::KV, 1).unwrap();
    assert_eq!(choice.reason, Reason::NearTie { among: 4 });
    assert_eq!(chosen(&choice), "w3#1/0");

    // The mean of ten is to ask 3,000 tokens in the next minute; two targets are asked for a quarter of
    // what they can compute.
    candidates[1].obligation = bound(2, 15_000.0);
    candidates[2].obligation = bound(2, 15_000.0);
    let choice = choose(&conversation, &snapshot(candidates), Policy::KV, 1).unwrap();
    let obliged: Vec<f64> = choice.scores.iter().map(|it| it.terms.obligation).collect();
    let wait = 3.0 * 0.25 / 0.75;
    assert!((obliged[1] - wait).abs() < 0.01, "{obliged:?}");
    assert!(obliged[0] < 0.01 && obliged[3] < 0.01, "{obliged:?}");
    assert!(["w1#1/0", "w4#1/0"].contains(&chosen(&choice).as_str()));
}
