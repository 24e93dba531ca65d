//! Engines that take the ranks they are asked for and ignore them.

use affinity::MoveReason;
use domain::{DpRank, Endpoint, Epoch};
use routing::{Asked, BindingAction, Config, Degraded, Request, Seen};

use crate::world::{BLOCK, World, bound, content, target};

#[test]
fn an_untrusted_endpoint_is_asked_all_the_same_and_its_decisions_say_so() {
    let mut world = World::new(1, 2, Config::default());
    ignore_ranks(&mut world);
    let request = world.request(&content(1, 2));
    let decision = world.decide(&request, None).unwrap();
    assert!(decision.target().is_some());
    assert_eq!(decision.degraded, [Degraded::RankUntrusted]);
    let completions = Request {
        endpoint: Endpoint::Completions,
        ..request.clone()
    };
    assert_eq!(world.decide(&completions, None).unwrap().degraded, []);
    assert_eq!(world.router.findings(world.now).len(), 1);
    world
        .router
        .set_epoch(&"w1".parse().unwrap(), Epoch::new(2));
    assert_eq!(world.decide(&request, None).unwrap().degraded, []);
    assert_eq!(world.router.findings(world.now), []);
    world.router.expire(world.now);
    assert_eq!(world.router.truth().distrust(), []);
}

#[test]
fn where_ranks_are_ignored_a_binding_does_not_go_after_its_prefix() {
    let mut world = World::new(1, 4, Config::default());
    let binding = bound("c", "w1#1/0", 50 * BLOCK);
    world.hold(&target("w1#1/2"), &content(1, 50));
    let turn = world.turn("c", &content(1, 60));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    let lost = BindingAction::Rebind(MoveReason::PrefixLost);
    assert_eq!(decision.binding, lost, "while it heeds them");
    ignore_ranks(&mut world);
    let turn = world.turn("c", &content(1, 60));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(decision.binding, BindingAction::Keep);
    assert_eq!(decision.target(), Some(&binding.target));
    assert_eq!(decision.degraded, [Degraded::RankUntrusted]);
}

/// Two turns at `w1` run elsewhere than where they were sent.
fn ignore_ranks(world: &mut World) {
    let asked = Asked {
        worker: "w1".parse().unwrap(),
        epoch: Epoch::FIRST,
        endpoint: Endpoint::Chat,
        start_rank: 0,
        dp_size: 2,
        dp_rank: DpRank::new(0),
    };
    for _ in 0..2 {
        let seen = Seen::Named(DpRank::new(1));
        world.router.truth_mut().judge(&asked, seen, world.now);
    }
}
