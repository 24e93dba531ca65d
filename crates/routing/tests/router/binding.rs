//! What bindings demand, and what becomes of them.

use affinity::{Mode, MoveReason};
use domain::{Epoch, Target, TargetState, Tokens};
use placement::Policy;
use routing::{BindingAction, Config, Decision, Degraded, NoTarget, Reason, Status};

use crate::world::{World, bound, content, ended, target, worker};

fn world() -> World {
    World::new(2, 2, Config::default())
}

fn at(decision: &Decision) -> &Target {
    decision.target().unwrap()
}

#[test]
fn a_first_turn_asks_for_a_binding_and_a_later_one_keeps_it() {
    let mut world = world();
    let first = world.turn("c", &content(1, 10));
    let decision = world.decide(&first, None).unwrap();
    assert_eq!(decision.binding, BindingAction::Create);
    assert!(matches!(decision.reason, Reason::Policy(_)));
    let binding = bound("c", &at(&decision).to_string(), 1_280);
    let second = world.turn("c", &content(1, 12));
    let decision = world.decide(&second, Some(&binding)).unwrap();
    assert_eq!(
        (at(&decision), decision.reason),
        (&binding.target, Reason::Bound)
    );
    assert_eq!(decision.binding, BindingAction::Keep);
}

#[test]
fn a_bound_target_serves_although_another_is_cheaper() {
    let mut world = world();
    let other = target("w2#1/1");
    world.hold(&other, &content(1, 10));
    let turn = world.turn("c", &content(1, 10));
    let decision = world.decide(&turn, Some(&bound("c", "w1#1/0", 0))).unwrap();
    assert_eq!(at(&decision), &target("w1#1/0"));
    let choice = decision.choice.unwrap();
    assert_eq!(
        choice.place.target(),
        Some(&other),
        "the policy's view stays in the record"
    );
}

#[test]
fn without_a_conversation_there_is_nothing_to_bind() {
    let mut world = world();
    let request = world.request(&content(1, 10));
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.binding, BindingAction::None);
}

#[test]
fn a_restart_fences_a_binding() {
    let mut world = world();
    let binding = bound("c", "w1#1/0", 1_280);
    world
        .router
        .set_epoch(&"w1".parse().unwrap(), Epoch::new(2));
    let turn = world.turn("c", &content(1, 10));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(decision.binding, BindingAction::Rebind(MoveReason::Fenced));
    assert_ne!(at(&decision), &binding.target);
}

#[test]
fn a_worker_that_went_away_releases_its_conversations() {
    let mut world = world();
    world.router.remove_worker(&"w1".parse().unwrap());
    let turn = world.turn("c", &content(1, 10));
    let decision = world
        .decide(&turn, Some(&bound("c", "w1#1/0", 1_280)))
        .unwrap();
    assert_eq!(decision.binding, BindingAction::Rebind(MoveReason::Gone));
    assert_eq!(at(&decision).worker.as_str(), "w2");
}

#[test]
fn a_drained_target_gives_up_its_conversation_unless_nothing_else_can_serve() {
    let mut world = world();
    let mut draining = worker("w1", 2);
    draining.state = TargetState::Leaving;
    world.router.set_worker(draining);
    let binding = bound("c", "w1#1/0", 1_280);
    let turn = world.turn("c", &content(1, 10));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(decision.binding, BindingAction::Rebind(MoveReason::Drained));
    world.router.remove_worker(&"w2".parse().unwrap());
    let turn = world.turn("c", &content(1, 10));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(decision.reason, Reason::BoundForLackOfOthers);
    assert_eq!(
        (at(&decision), decision.binding),
        (&binding.target, BindingAction::Keep)
    );
}

#[test]
fn a_lost_prefix_moves_the_binding_to_who_holds_it() {
    let mut world = world();
    let other = target("w2#1/1");
    world.hold(&other, &content(1, 100));
    world.hold(&target("w1#1/0"), &content(1, 20));
    let binding = bound("c", "w1#1/0", 12_800);
    let turn = world.turn("c", &content(1, 100));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(
        decision.binding,
        BindingAction::Rebind(MoveReason::PrefixLost)
    );
    assert_eq!(at(&decision), &other);
    world.not_ready = vec![(binding.target.clone(), TargetState::Partial)];
    let turn = world.turn("c", &content(1, 100));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(
        decision.reason,
        Reason::Bound,
        "incomplete claims prove no loss"
    );
}

#[test]
fn a_target_that_failed_this_request_is_left() {
    let mut world = world();
    let binding = bound("c", "w1#1/0", 1_280);
    let turn = world.turn("c", &content(1, 10));
    world.decide(&turn, Some(&binding)).unwrap();
    world
        .router
        .finish(turn.id, &ended(Status::Failed), world.now);
    let mut again = turn;
    again.tried = vec![binding.target.clone()];
    let decision = world.decide(&again, Some(&binding)).unwrap();
    assert_eq!(decision.binding, BindingAction::Rebind(MoveReason::Failed));
    assert_ne!(at(&decision), &binding.target);
}

#[test]
fn a_turn_that_finds_no_way_to_its_worker_goes_elsewhere_once_and_its_binding_stays() {
    let mut world = world();
    let binding = bound("c", "w1#1/0", 1_280);
    let mut turn = world.turn("c", &content(1, 10));
    turn.no_adapter = vec!["w1".parse().unwrap()];
    let away = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(away.binding, BindingAction::Excursion);
    assert_eq!(at(&away).worker, target("w2#1/0").worker);
    let failed = ended(Status::NoAdapter);
    world.router.finish(turn.id, &failed, world.now);

    let next = world.turn("c", &content(1, 10));
    let back = world.decide(&next, Some(&binding)).unwrap();
    assert_eq!((at(&back), back.reason), (&binding.target, Reason::Bound));

    turn.no_adapter = ["w1", "w2"].map(|it| it.parse().unwrap()).into();
    assert!(world.decide(&turn, Some(&binding)).is_err());
}

#[test]
fn an_unreachable_engine_is_left_for_another_one_and_not_for_its_other_ranks() {
    for seed in 0..50 {
        let mut world = world();
        world.wait(f64::from(seed));
        let mut request = world.request(&content(1, 10));
        let first = world.decide(&request, None).unwrap();
        let failed = ended(Status::Unreachable);
        world.router.finish(request.id, &failed, world.now);
        request.tried = vec![at(&first).clone()];
        let second = world.decide(&request, None).unwrap();
        assert_ne!(at(&second).worker, at(&first).worker);
        let mut alone = request;
        alone.tried = ["w1#1/0", "w1#1/1", "w2#1/0"].map(target).into();
        world.router.finish(alone.id, &failed, world.now);
        let last = world.decide(&alone, None).unwrap();
        assert_eq!(at(&last), &target("w2#1/1"), "better than none");
    }
}

#[test]
fn a_request_that_failed_everywhere_has_no_target() {
    let mut world = world();
    let mut request = world.request(&content(1, 10));
    request.tried = ["w1#1/0", "w1#1/1", "w2#1/0", "w2#1/1"].map(target).into();
    let error = world.decide(&request, None).unwrap_err();
    assert_eq!(error, NoTarget::AllTried { tried: 4 });
}

#[test]
fn baselines_neither_read_nor_ask_for_bindings() {
    for policy in Policy::ALL.iter().copied().filter(|it| it.is_baseline()) {
        let config = Config {
            policy,
            affinity: Mode::Hard.into(),
            ..Config::default()
        };
        let mut world = World::new(2, 2, config);
        for _ in 0..8 {
            let turn = world.turn("c", &content(1, 10));
            let decision = world.decide(&turn, Some(&bound("c", "w1#1/0", 0))).unwrap();
            assert_eq!(decision.binding, BindingAction::None, "{policy}");
            assert!(matches!(decision.reason, Reason::Policy(_)), "{policy}");
        }
    }
}

#[test]
fn the_loser_of_a_race_follows_and_its_reservation_goes_along() {
    let mut world = world();
    let turn = world.turn("c", &content(1, 10));
    let decision = world.decide(&turn, None).unwrap();
    let loser = at(&decision).clone();
    let winner = if loser == target("w1#1/0") {
        "w2#1/0"
    } else {
        "w1#1/0"
    };
    let binding = bound("c", winner, 0);
    let followed = world.router.follow(&decision, &turn, &binding, world.now);
    assert_eq!(
        (at(&followed), followed.reason),
        (&target(winner), Reason::Followed)
    );
    assert_eq!(followed.binding, BindingAction::Keep);
    assert_eq!(world.router.pending(&loser, world.now), Tokens::ZERO);
    assert_eq!(world.router.pending(&target(winner), world.now), turn.isl);
    assert_eq!(world.router.open(), 1);
}

#[test]
fn a_winner_that_this_router_cannot_use_is_not_followed() {
    let mut world = world();
    let turn = world.turn("c", &content(1, 10));
    let decision = world.decide(&turn, None).unwrap();
    let unknown = bound("c", "w9#1/0", 0);
    let stayed = world.router.follow(&decision, &turn, &unknown, world.now);
    assert_eq!(at(&stayed), at(&decision));
    assert_eq!(stayed.binding, BindingAction::None);
    assert_eq!(stayed.degraded, [Degraded::BindingUnusable]);
    assert_eq!(world.router.pending(at(&stayed), world.now), turn.isl);
}

#[test]
fn without_an_index_bindings_hold_and_new_conversations_agree_across_routers() {
    let mut worlds = [0, 1].map(|_| world());
    let binding = bound("c", "w2#1/1", 1_280);
    let turn = worlds[0].turn("c", &content(1, 10));
    let decision = worlds[0].decide_blind(&turn, Some(&binding)).unwrap();
    assert_eq!(at(&decision), &binding.target);
    assert_eq!(decision.degraded, [Degraded::NoIndex]);
    assert_eq!((decision.overlap, decision.index_age), (None, None));
    assert_eq!(
        decision.uncached,
        Some(Tokens::new(64)),
        "it held the last turn"
    );
    worlds[0].router.abandon(turn.id, worlds[0].now);
    let places = worlds.map(|mut world| {
        // The seeds differ.
        world.request(&content(9, 1));
        let turn = world.turn("new", &content(2, 10));
        at(&world.decide_blind(&turn, None).unwrap()).clone()
    });
    assert_eq!(places[0], places[1]);
}
