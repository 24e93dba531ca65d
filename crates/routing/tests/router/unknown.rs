//! What a silent part of the index leaves unknown: neither held nor lost.

use accounting::Waterfall;
use affinity::Mode;
use domain::Tokens;
use routing::{BindingAction, Config, Decision, Degraded, Outcome, Reason, Request};

use crate::world::{BLOCK, World, bound, content, served, target, usage};

/// Two workers of one rank; the index says nothing of `w2`.
fn world(mode: Mode) -> World {
    let config = Config {
        affinity: mode.into(),
        ..Config::default()
    };
    let mut world = World::new(2, 1, config);
    world.unknown.insert(target("w2#1/0"));
    world
}

fn ended(world: &mut World, request: &Request, cached: Option<u64>) -> Waterfall {
    let outcome = Outcome {
        usage: Some(usage(request.isl.get(), 5, cached)),
        ..served()
    };
    let row = world.router.finish(request.id, &outcome, world.now);
    row.unwrap()
}

fn held(decision: &Decision, at: &str) -> Tokens {
    decision.held_at(&target(at)).unwrap()
}

#[test]
fn a_binding_to_a_target_of_which_the_index_says_nothing_stays() {
    for mode in [Mode::Hard, Mode::Soft] {
        let mut world = world(mode);
        // A long shared prefix elsewhere, which would be worth seconds.
        world.hold(&target("w1#1/0"), &content(1, 1_000));
        let binding = bound("c", "w2#1/0", 1_000 * BLOCK);
        let turn = world.turn("c", &content(1, 1_010));
        let decision = world.decide(&turn, Some(&binding)).unwrap();
        assert_eq!(decision.target(), Some(&binding.target), "{mode:?}");
        assert_eq!(decision.reason, Reason::Bound);
        assert_eq!(decision.binding, BindingAction::Keep);
        assert_eq!(decision.degraded, [Degraded::PartialIndex]);
        assert_eq!(decision.uncached, Some(Tokens::new(10 * BLOCK + BLOCK / 2)));
        let presumed = decision.candidate(&binding.target).unwrap().presumed;
        assert_eq!(presumed, Tokens::new(1_000 * BLOCK), "by its last turn");
    }
}

#[test]
fn a_binding_to_a_target_that_is_known_moves_as_ever() {
    let mut world = world(Mode::Hard);
    world.router.set_worker(crate::world::worker("w3", 1));
    world.hold(&target("w3#1/0"), &content(1, 10));
    world.hold(&target("w2#1/0"), &content(1, 10));
    let binding = bound("c", "w1#1/0", 10 * BLOCK);
    let turn = world.turn("c", &content(1, 11));
    let decision = world.decide(&turn, Some(&binding)).unwrap();
    assert_eq!(decision.target(), Some(&target("w3#1/0")));
    assert_eq!(
        decision.binding,
        BindingAction::Rebind(affinity::MoveReason::PrefixLost)
    );
}

#[test]
fn a_new_conversation_is_credited_with_what_is_known_only() {
    let mut world = world(Mode::Hard);
    world.hold(&target("w1#1/0"), &content(1, 50));
    world.hold(&target("w2#1/0"), &content(1, 100));
    let turn = world.turn("c", &content(1, 110));
    let decision = world.decide(&turn, None).unwrap();
    assert_eq!(decision.target(), Some(&target("w1#1/0")));
    assert_eq!(held(&decision, "w2#1/0"), Tokens::ZERO);
    assert_eq!(decision.degraded, [Degraded::PartialIndex]);
}

#[test]
fn a_part_that_follows_no_target_of_the_model_is_not_missed() {
    let mut world = world(Mode::Hard);
    world.unknown = [target("w9#1/0")].into();
    let request = world.request(&content(1, 10));
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.degraded, []);
}

#[test]
fn the_waterfall_blames_neither_memory_nor_the_router_for_what_is_not_known() {
    let mut world = world(Mode::Hard);
    world.hold(&target("w1#1/0"), &content(1, 4));
    let binding = bound("c", "w2#1/0", 8 * BLOCK);
    for (cached, routing, index_error) in [
        (Some(8), 0, Some(0)),
        (Some(1), 3, Some(0)),
        (None, 0, None),
    ] {
        let turn = world.turn("c", &content(1, 10));
        let mut views = [world.view(&turn)];
        views[0].ceiling = 9;
        views[0].stored = 9;
        let seed = 1;
        let decision = world
            .router
            .decide(&turn, Some(&views), Some(&binding), world.now, seed)
            .unwrap();
        assert_eq!(decision.target(), Some(&binding.target));
        let row = ended(&mut world, &turn, cached.map(|it| it * BLOCK));
        let parts = row.parts();
        let known = cached.unwrap_or(0).max(4);
        assert_eq!(
            (parts.capacity, parts.unavailable),
            (Tokens::ZERO, Tokens::ZERO)
        );
        assert_eq!(
            parts.routing,
            Tokens::new(routing * BLOCK),
            "what w1 was known to hold"
        );
        assert_eq!(parts.unannounced, Tokens::new((9 - known) * BLOCK));
        assert_eq!(parts.index_error, index_error);
        assert_eq!(row.ceiling(), Tokens::new(9 * BLOCK));
    }
}

#[test]
fn the_row_of_a_target_that_is_known_says_what_was_promised() {
    let mut world = world(Mode::Hard);
    world.hold(&target("w1#1/0"), &content(1, 4));
    let turn = world.turn("c", &content(1, 10));
    let binding = bound("c", "w1#1/0", 4 * BLOCK);
    let mut views = [world.view(&turn)];
    views[0].stored = 9;
    world
        .router
        .decide(&turn, Some(&views), Some(&binding), world.now, 1)
        .unwrap();
    let parts = ended(&mut world, &turn, Some(3 * BLOCK)).parts();
    assert_eq!(parts.index_error, Some(128));
    assert_eq!(
        (parts.capacity, parts.routing),
        (Tokens::ZERO, Tokens::ZERO)
    );
}
