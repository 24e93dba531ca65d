//! Turns that leave a target that could serve them, because it would be dear to wait.

use affinity::{Binding, Mode, MoveReason};
use domain::{Target, Tokens};
use routing::{BindingAction, Config, Decision, Reason, Status};

use crate::world::{BLOCK, RATE, World, bound, content, ended, target};

/// Blocks of about a second's prefill.
const SECOND: u64 = RATE as u64 / BLOCK;

fn world(mode: Mode) -> World {
    let config = Config {
        affinity: mode.into(),
        ..Config::default()
    };
    World::new(2, 1, config)
}

/// Prefill of about so many seconds is on its way to `at`.
fn busy(world: &mut World, at: &str, seconds: u64, name: u64) {
    let mut request = world.request(&content(name, seconds * SECOND));
    request.pin = Some(routing::Pin {
        worker: target(at).worker,
        dp_rank: Some(target(at).dp_rank),
    });
    world.decide(&request, None).unwrap();
}

/// A conversation of `blocks` blocks at home on w1, all of it in its cache.
fn at_home(world: &mut World, blocks: u64) -> Binding {
    let home = target("w1#1/0");
    world.hold(&home, &content(1, blocks));
    bound("c", "w1#1/0", blocks * BLOCK)
}

fn turn(world: &mut World, blocks: u64, binding: &Binding) -> Decision {
    let turn = world.turn("c", &content(1, blocks));
    world.decide(&turn, Some(binding)).unwrap()
}

fn at(decision: &Decision) -> &Target {
    decision.target().unwrap()
}

#[test]
fn a_turn_that_would_wait_far_longer_than_elsewhere_goes_elsewhere_once() {
    let mut world = world(Mode::Hard);
    let binding = at_home(&mut world, 2 * SECOND);
    busy(&mut world, "w1#1/0", 3, 7);
    // Three seconds of waiting against two of computing the prefix again: within the patience of two.
    let patient = turn(&mut world, 2 * SECOND, &binding);
    assert_eq!(patient.reason, Reason::Bound);
    world
        .router
        .finish(patient.id, &ended(Status::Served), world.now);

    // Computing it again costs others too: eleven seconds of waiting are worth that.
    busy(&mut world, "w1#1/0", 8, 8);
    let away = turn(&mut world, 2 * SECOND, &binding);
    assert_eq!(
        (away.reason, away.binding, at(&away)),
        (
            Reason::Excursion,
            BindingAction::Excursion,
            &target("w2#1/0")
        )
    );
    world
        .router
        .finish(away.id, &ended(Status::Served), world.now);

    // The other holds all of it now, and home no less than before: the next turn goes home as soon as it can.
    world.hold(&target("w2#1/0"), &content(1, 2 * SECOND + 10));
    world.wait(10.0);
    let back = turn(&mut world, 2 * SECOND + 12, &binding);
    assert_eq!((back.reason, at(&back)), (Reason::Bound, &binding.target));
}

#[test]
fn where_everybody_waits_nobody_leaves() {
    let mut world = world(Mode::Hard);
    let binding = at_home(&mut world, 2 * SECOND);
    for seconds in 1..=10 {
        busy(&mut world, "w1#1/0", seconds, 2 * seconds + 100);
        busy(&mut world, "w2#1/0", seconds, 2 * seconds + 101);
        let decision = turn(&mut world, 2 * SECOND, &binding);
        assert_eq!(decision.reason, Reason::Bound, "{seconds}");
        world
            .router
            .finish(decision.id, &ended(Status::Served), world.now);
    }
}

#[test]
fn what_is_set_says_how_long_a_turn_waits() {
    for (wait, reason) in [(0.5, Reason::Excursion), (60.0, Reason::Bound)] {
        let mut config = Config::default();
        config.patience.wait = wait;
        let mut world = World::new(2, 1, config);
        let binding = at_home(&mut world, SECOND);
        busy(&mut world, "w1#1/0", 8, 7);
        assert_eq!(turn(&mut world, SECOND, &binding).reason, reason, "{wait}");
    }
}

/// One conversation over `turns` turns of a second each, under load that goes back and forth between the targets
/// every two turns; how often its binding was moved.
fn moves(mode: Mode, seconds: u64, turns: u64) -> u32 {
    let mut world = world(mode);
    let mut binding = at_home(&mut world, 2 * SECOND);
    let mut moves = 0;
    for number in 0..turns {
        let loaded = ["w1#1/0", "w2#1/0"][usize::try_from(number / 2 % 2).unwrap()];
        busy(&mut world, loaded, seconds, 1_000 + number);
        let blocks = 2 * SECOND + number;
        let decision = turn(&mut world, blocks, &binding);
        if let BindingAction::Rebind(reason) = decision.binding {
            assert_eq!(reason, MoveReason::Cheaper);
            binding.target = at(&decision).clone();
            moves += 1;
        }
        world.hold(&at(&decision).clone(), &content(1, blocks));
        if *at(&decision) == binding.target {
            binding.held = Tokens::new(blocks * BLOCK);
        }
        world
            .router
            .finish(decision.id, &ended(Status::Served), world.now);
        world.wait(1.0);
    }
    moves
}

#[test]
fn a_soft_binding_moves_for_a_lasting_difference_and_does_not_flap() {
    // Less waiting than the prefix is worth twice over: computing it again, and the bonus.
    assert_eq!(moves(Mode::Soft, 2, 100), 0);
    // Far more: it goes, and then both hold the prefix. Load that swings by less than its worth moves nothing more.
    let mut world = world(Mode::Soft);
    let mut binding = at_home(&mut world, 2 * SECOND);
    busy(&mut world, "w1#1/0", 20, 7);
    let moved = turn(&mut world, 2 * SECOND, &binding);
    assert_eq!(moved.binding, BindingAction::Rebind(MoveReason::Cheaper));
    assert_eq!(at(&moved), &target("w2#1/0"));
    binding.target = at(&moved).clone();
    world.hold(&binding.target, &content(1, 2 * SECOND));
    world
        .router
        .finish(moved.id, &ended(Status::Served), world.now);
    world.wait(30.0);
    for number in 0..20 {
        let home = turn(&mut world, 2 * SECOND, &binding);
        assert_eq!(home.binding, BindingAction::Keep, "{number}");
        world
            .router
            .finish(home.id, &ended(Status::Served), world.now);
        world.wait(1.0);
    }
}

#[test]
fn a_hard_binding_is_never_moved_by_load() {
    for seconds in [1, 5, 20] {
        assert_eq!(moves(Mode::Hard, seconds, 100), 0, "{seconds} s");
    }
}
