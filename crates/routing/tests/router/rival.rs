//! Another policy asked about decisions that were made.

use placement::{Place, Policy};
use routing::{Config, Rival, Rivalry};

use crate::world::{World, bound, content, target};

#[test]
fn what_another_policy_would_have_done_is_priced_as_ours_prices_it() {
    let mut world = World::new(2, 2, Config::default());
    let prompt = content(1, 60);
    world.hold(&target("w1#1/1"), &prompt);
    let request = world.turn("c1", &prompt);
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.target(), Some(&target("w1#1/1")));

    let same = Rival::of(&decision.made(), Policy::KV).unwrap();
    assert_eq!(
        (same.flips, same.asked, same.gain, same.held),
        (false, true, Some(0.0), 0.0)
    );
    // The first turn of all goes to the first rank, which holds nothing.
    let other = Rival::of(&decision.made(), Policy::TargetRoundRobin).unwrap();
    assert_eq!(other.place, Place::Target(target("w1#1/0")));
    assert!(other.flips);
    let cost = |at: &str| {
        let mut scores = decision.scores().iter();
        scores.find(|it| it.target == target(at)).unwrap().cost
    };
    assert_eq!(other.gain, Some(cost("w1#1/1") - cost("w1#1/0")));
    let held = decision.held_at(&target("w1#1/1")).unwrap().as_f64();
    assert_eq!(other.held, -held);
    // Where the engine chooses the rank, any may be meant.
    let worker = Rival::of(&decision.made(), Policy::RoundRobin).unwrap();
    assert!(!worker.flips, "{worker:?}");

    let mut sum = Rivalry::default();
    [same, other].iter().for_each(|it| sum.add(it));
    assert_eq!((sum.decisions, sum.asked, sum.flips), (2, 2, 1));
    assert_eq!(sum.lost_tokens, held);
    assert!(sum.gain() < 0.0, "{sum:?}");
}

#[test]
fn a_bound_turn_is_bound_for_whoever_keeps_conversations() {
    let mut world = World::new(1, 2, Config::default());
    let prompt = content(1, 60);
    let bound = bound("c1", "w1#1/1", 60 * 128);
    world.hold(&bound.target, &prompt);
    let request = world.turn("c1", &prompt);
    let decision = world.decide(&request, Some(&bound)).unwrap();
    assert!(!decision.is_free());
    let kept = Rival::of(&decision.made(), Policy::KV).unwrap();
    assert!(!kept.asked && !kept.flips);
    let baseline = Rival::of(&decision.made(), Policy::TargetRoundRobin).unwrap();
    assert!(baseline.asked);
}
