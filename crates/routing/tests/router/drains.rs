//! Workers and ranks that an operator drains.

use affinity::MoveReason;
use domain::{DpRank, Drain, Epoch, Timestamp, WorkerId};
use placement::Policy;
use routing::{BindingAction, Config, NoTarget, Reason};

use crate::world::{World, bound, content, target, worker};

fn w1() -> WorkerId {
    "w1".parse().unwrap()
}

fn drain_of(dp_rank: Option<u32>, moves: bool) -> Drain {
    Drain {
        worker: w1(),
        dp_rank: dp_rank.map(DpRank::new),
        moves,
        actor: "operator".parse().unwrap(),
        since: Timestamp::ZERO,
    }
}

fn drain(world: &mut World, drained: &[Option<u32>]) {
    let drained = drained.iter().map(|it| drain_of(*it, true));
    world.router.set_drains(drained);
}

#[test]
fn a_drained_rank_takes_no_new_conversation_under_any_policy() {
    let policies = [Policy::KV, Policy::TargetRoundRobin, Policy::PowerOfTwo];
    for policy in policies {
        let config = Config {
            policy,
            ..Config::default()
        };
        let mut world = World::new(2, 2, config);
        let rank = target("w1#1/1");
        world.hold(&rank, &content(1, 100));
        drain(&mut world, &[Some(1)]);
        for turn in 0..50 {
            let turn = world.turn(&format!("c{turn}"), &content(1, 100));
            let decision = world.decide(&turn, None).unwrap();
            assert_ne!(decision.target().unwrap(), &rank, "{policy:?}");
        }
    }
}

#[test]
fn conversations_of_a_drained_worker_stay_unless_they_are_to_move() {
    for moves in [false, true] {
        let mut world = World::new(2, 2, Config::default());
        world.router.set_drains([drain_of(None, moves)]);
        let binding = bound("c", "w1#1/0", 1_280);
        let turn = world.turn("c", &content(1, 10));
        let decision = world.decide(&turn, Some(&binding)).unwrap();
        match moves {
            true => assert_eq!(decision.place.worker().as_str(), "w2"),
            false => {
                assert_eq!(decision.target(), Some(&binding.target));
                assert_eq!(decision.binding, BindingAction::Keep);
            }
        }
        let new = world.turn("d", &content(2, 10));
        let new = world.decide(&new, None).unwrap();
        assert_eq!(new.place.worker().as_str(), "w2", "no new one comes");
    }
    // Whoever moves one rank's moves it, whatever is said of its worker.
    let mut world = World::new(2, 2, Config::default());
    let drains = [drain_of(None, false), drain_of(Some(0), true)];
    world.router.set_drains(drains);
    for (at, stays) in [("w1#1/0", false), ("w1#1/1", true)] {
        let turn = world.turn("c", &content(1, 10));
        let decision = world.decide(&turn, Some(&bound("c", at, 1_280))).unwrap();
        assert_eq!(decision.reason == Reason::Bound, stays, "{at}");
    }
}

#[test]
fn conversations_of_a_drained_worker_go_elsewhere_at_their_next_turn_and_no_others_move() {
    let mut world = World::new(2, 2, Config::default());
    drain(&mut world, &[None]);
    for (at, moves) in [("w1#1/0", true), ("w1#1/1", true), ("w2#1/0", false)] {
        let turn = world.turn("c", &content(1, 10));
        let decision = world.decide(&turn, Some(&bound("c", at, 1_280))).unwrap();
        match moves {
            true => {
                let drained = BindingAction::Rebind(MoveReason::Drained);
                assert_eq!(decision.binding, drained, "{at}");
                assert_eq!(decision.place.worker().as_str(), "w2");
            }
            false => assert_eq!(decision.reason, Reason::Bound, "{at}"),
        }
    }
}

#[test]
fn a_drain_holds_over_restarts_of_its_worker_until_it_is_undone() {
    let mut world = World::new(1, 2, Config::default());
    world.router.remove_worker(&w1());
    drain(&mut world, &[None]);
    world.router.set_worker(worker("w1", 2));
    world.router.set_epoch(&w1(), Epoch::new(7));
    let turn = world.turn("c", &content(1, 10));
    let none = world.decide(&turn, None).unwrap_err();
    assert!(matches!(none, NoTarget::NoneReady { .. }), "{none}");

    drain(&mut world, &[Some(0)]);
    let turn = world.turn("c", &content(1, 10));
    let decision = world.decide(&turn, None).unwrap();
    assert_eq!(decision.target().unwrap(), &target("w1#7/1"));
    drain(&mut world, &[]);
    let binding = bound("c", "w1#7/0", 1_280);
    let turn = world.turn("c", &content(1, 10));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(decision.reason, Reason::Bound);
}

#[test]
fn neither_more_ranks_nor_another_worker_nor_an_undone_drain_move_a_conversation() {
    let mut world = World::new(2, 2, Config::default());
    let homes: Vec<_> = (0..40)
        .map(|number| {
            let turn = world.turn(&format!("c{number}"), &content(number, 10));
            world.decide(&turn, None).unwrap().target().unwrap().clone()
        })
        .collect();
    drain(&mut world, &[None]);
    drain(&mut world, &[]);
    world.router.set_worker(worker("w1", 8));
    world.router.set_worker(worker("w3", 8));
    for (number, home) in (0..).zip(&homes) {
        let name = format!("c{number}");
        let binding = bound(&name, &home.to_string(), 1_280);
        let turn = world.turn(&name, &content(number, 12));
        let decision = world.decide(&turn, Some(&binding)).unwrap();
        assert_eq!(
            (decision.target(), decision.reason),
            (Some(home), Reason::Bound)
        );
        assert_eq!(decision.binding, BindingAction::Keep);
    }
}
