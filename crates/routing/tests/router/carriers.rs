//! What is still being computed is told from what was never announced.

use accounting::Parts;
use domain::{BlockHash, DecisionId, ReservationChange, Tokens, sequence_hashes};
use placement::landmarks;
use routing::{Config, Decision, Outcome, Request};

use crate::world::{BLOCK, World, content, served, target, usage};

/// Decides on a request of `blocks`, of which the first `carried` were carried before and the first `stored` announced.
fn ask(world: &mut World, blocks: &[BlockHash], carried: u32, stored: u32) -> (Request, Decision) {
    let request = world.request(blocks);
    let mut view = world.view(&request);
    (view.ceiling, view.stored) = (carried, stored);
    let seed = u64::try_from(request.id.get()).unwrap();
    let decided = world
        .router
        .decide(&request, Some(&[view]), None, world.now, seed);
    (request, decided.unwrap())
}

/// What a request lost that found nothing cached.
fn lost(world: &mut World, request: &Request) -> Parts {
    let outcome = Outcome {
        usage: Some(usage(request.isl.get(), 1, Some(0))),
        ..served()
    };
    let row = world.router.finish(request.id, &outcome, world.now);
    row.unwrap().parts()
}

#[test]
fn a_prefix_is_in_flight_while_its_carrier_runs_and_unannounced_afterwards() {
    let mut world = World::new(2, 1, Config::default());
    let shared = content(1, 10);
    let (first, _) = ask(&mut world, &shared, 0, 0);
    // Two blocks of ten are announced already.
    let longer = [shared.clone(), content(2, 5)].concat();
    let (second, _) = ask(&mut world, &longer, 10, 2);
    world.router.first_token(first.id, world.now);
    let (third, _) = ask(&mut world, &longer, 10, 2);
    world.router.finish(first.id, &served(), world.now);
    let parts = lost(&mut world, &second);
    assert_eq!(parts.in_flight, Tokens::new(8 * BLOCK));
    assert_eq!(parts.unannounced, Tokens::ZERO);
    assert_eq!(lost(&mut world, &third).in_flight, Tokens::new(8 * BLOCK));

    let (last, _) = ask(&mut world, &longer, 10, 2);
    let parts = lost(&mut world, &last);
    assert_eq!(parts.in_flight, Tokens::ZERO);
    assert_eq!(parts.unannounced, Tokens::new(8 * BLOCK));
    assert_eq!(
        world.router.carried(),
        0,
        "nothing is left of those that ended"
    );
}

#[test]
fn another_prefix_on_its_way_says_nothing() {
    let mut world = World::new(2, 1, Config::default());
    let (running, _) = ask(&mut world, &content(1, 10), 0, 0);
    let (other, _) = ask(&mut world, &content(2, 10), 10, 0);
    let parts = lost(&mut world, &other);
    assert_eq!(
        (parts.in_flight, parts.unannounced.get()),
        (Tokens::ZERO, 10 * BLOCK)
    );
    world.router.abandon(running.id, world.now);
    assert_eq!(world.router.carried(), 0);
}

#[test]
fn a_peers_request_is_a_carrier_until_its_first_token() {
    let mut world = World::new(2, 1, Config::default());
    let shared = content(1, 10);
    let peer = "r2".parse().unwrap();
    let id = DecisionId::new(u128::MAX);
    let reserve = ReservationChange::Reserve {
        id,
        target: target("w1#1/0"),
        uncached: Tokens::new(10 * BLOCK),
        landmarks: landmarks(&sequence_hashes(&shared)),
        lease_until: world.now + std::time::Duration::from_secs(60),
        conversation: None,
    };
    world.router.apply_peer(&peer, &reserve, world.now);
    let longer = [shared, content(2, 5)].concat();
    let (during, decision) = ask(&mut world, &longer, 10, 0);
    assert_eq!(
        decision.target(),
        Some(&target("w1#1/0")),
        "it waits for what is computed there"
    );
    let release = ReservationChange::Release { id };
    world.router.apply_peer(&peer, &release, world.now);
    let (after, _) = ask(&mut world, &longer, 10, 0);
    assert_eq!(lost(&mut world, &during).in_flight, Tokens::new(10 * BLOCK));
    // This router's own request carries it meanwhile.
    assert_eq!(lost(&mut world, &after).in_flight, Tokens::new(10 * BLOCK));
    let (last, _) = ask(&mut world, &longer, 10, 0);
    assert_eq!(lost(&mut world, &last).unannounced, Tokens::new(10 * BLOCK));
}
