//! From the decision to the row of the waterfall: reservations end on every path, exactly once.

use std::time::Duration;

use accounting::RankKnowledge;
use domain::{DecisionId, DpRank, ReservationChange, Tokens};
use placement::Policy;
use proptest::prelude::*;
use routing::{Config, Outcome, Status};

use crate::world::{RATE, World, content, ended, served, target, usage};

fn world() -> World {
    World::new(2, 2, Config::default())
}

#[test]
fn a_row_compares_what_was_promised_with_what_the_engine_found() {
    let mut world = world();
    world.hold(&target("w2#1/0"), &content(1, 6));
    let request = world.request(&content(1, 10));
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.target(), Some(&target("w2#1/0")));
    let outcome = Outcome {
        usage: Some(usage(1_344, 5, Some(640))),
        ..served()
    };
    let row = world
        .router
        .finish(request.id, &outcome, world.now)
        .unwrap();
    assert_eq!(row.chosen(), Tokens::new(768));
    assert_eq!(row.realised(), Some(Tokens::new(640)));
    assert_eq!(row.parts().index_error, Some(128));
    assert_eq!(row.parts().sum(), 1_344 - 640);
}

#[test]
fn the_rank_an_engine_chose_is_looked_up_in_what_was_known_then() {
    let config = Config {
        policy: Policy::RoundRobin,
        ..Config::default()
    };
    let mut world = World::new(2, 2, config);
    world.hold(&target("w1#1/1"), &content(1, 6));
    let row = |world: &mut World, observed_rank| {
        let request = world.request(&content(1, 10));
        let decision = world.decide(&request, None).unwrap();
        assert_eq!(decision.uncached, None);
        let outcome = Outcome {
            observed_rank,
            usage: Some(usage(1_344, 5, Some(0))),
            ..served()
        };
        world
            .router
            .finish(request.id, &outcome, world.now)
            .unwrap()
    };
    let seen = row(&mut world, Some(DpRank::new(1)));
    assert_eq!(
        (seen.chosen(), seen.rank()),
        (Tokens::new(768), RankKnowledge::Known)
    );
    let unseen = row(&mut world, None);
    assert_eq!(
        (unseen.chosen(), unseen.rank()),
        (Tokens::ZERO, RankKnowledge::Unknown)
    );
    assert_eq!(unseen.parts().routing, Tokens::new(768));
}

#[test]
fn what_was_not_served_leaves_no_row() {
    let mut world = world();
    for status in [
        Status::Refused,
        Status::Failed,
        Status::Unreachable,
        Status::NoAdapter,
        Status::Invalid,
        Status::Cancelled,
    ] {
        let request = world.request(&content(1, 10));
        world.decide(&request, None).unwrap();
        let row = world.router.finish(request.id, &ended(status), world.now);
        assert_eq!(row, None, "{status:?}");
    }
    let request = world.request(&content(1, 10));
    world.decide(&request, None).unwrap();
    world.router.first_token(request.id, world.now);
    let cancelled = ended(Status::Cancelled);
    let row = world
        .router
        .finish(request.id, &cancelled, world.now)
        .unwrap();
    assert_eq!(row.realised(), None, "it broke off before the engine said");
    assert_eq!(world.router.finish(request.id, &served(), world.now), None);
}

#[test]
fn the_first_token_ends_the_reservation_and_peers_are_told_once() {
    let mut world = world();
    let request = world.request(&content(1, 100));
    let decision = world.decide(&request, None).unwrap();
    let at = decision.target().unwrap();
    assert_eq!(world.router.pending(at, world.now), request.isl);
    for _ in 0..2 {
        world.router.first_token(request.id, world.now);
    }
    assert_eq!(world.router.pending(at, world.now), Tokens::ZERO);
    world.router.finish(request.id, &served(), world.now);
    world.router.abandon(request.id, world.now);
    let changes = world.router.take_changes();
    assert!(matches!(
        &changes[..],
        [ReservationChange::Reserve { uncached, landmarks, .. }, ReservationChange::Release { .. }]
            if *uncached == request.isl && landmarks.len() == 2
    ));
    assert_eq!(world.router.take_changes(), []);
}

#[test]
fn a_silent_peers_reservations_end_by_their_lease() {
    let mut world = world();
    let at = target("w1#1/0");
    let reserve = ReservationChange::Reserve {
        id: DecisionId::new(77),
        target: at.clone(),
        uncached: Tokens::new(1_000_000),
        landmarks: Vec::new(),
        lease_until: world.now + Duration::from_secs(30),
        conversation: None,
    };
    let ours = "r1".parse().unwrap();
    world.router.apply_peer(&ours, &reserve, world.now);
    assert_eq!(world.router.reserved(), 0, "our own echo is no peer");
    let peer = "r2".parse().unwrap();
    world.router.apply_peer(&peer, &reserve, world.now);
    assert_eq!(world.router.pending(&at, world.now).get(), 1_000_000);
    world.wait(30.0);
    world.router.expire(world.now);
    assert_eq!(world.router.pending(&at, world.now), Tokens::ZERO);
    assert_eq!(world.router.counters().reservations_expired, 1);
    assert_eq!(world.router.take_changes(), []);
}

#[test]
fn a_router_cannot_touch_what_another_reserved() {
    let mut world = world();
    let request = world.request(&content(1, 100));
    let decision = world.decide(&request, None).unwrap();
    let at = decision.target().unwrap();
    let peer = "r2".parse().unwrap();
    let mut changes = world.router.take_changes();
    changes.push(ReservationChange::Release { id: request.id });
    if let ReservationChange::Reserve { uncached, .. } = &mut changes[0] {
        *uncached = Tokens::ZERO;
    }
    for change in changes {
        world.router.apply_peer(&peer, &change, world.now);
    }
    assert_eq!(world.router.pending(at, world.now), request.isl);
}

#[test]
fn a_reservation_outlives_the_queue_it_waits_in() {
    let mut world = World::new(1, 1, Config::default());
    let at = target("w1#1/0");
    for number in 0..10 {
        let request = world.request(&content(number, 625));
        world.decide(&request, None).unwrap();
    }
    // 800,000 tokens at 8,000 a second.
    world.wait(90.0);
    world.router.expire(world.now);
    let left = world.router.pending(&at, world.now).as_f64();
    assert!((left - 10.0 * RATE).abs() < 1_000.0, "{left}");
}

#[test]
fn speed_is_learnt_from_prefills_that_did_not_queue() {
    let mut world = World::new(1, 1, Config::default());
    let id = "w1".parse().unwrap();
    for number in 0..60 {
        let request = world.request(&content(number, 100));
        world.decide(&request, None).unwrap();
        let queued = world.request(&content(1_000 + number, 100));
        world.decide(&queued, None).unwrap();
        let outcome = |ttft| Outcome {
            ttft: Some(Duration::from_secs_f64(ttft)),
            usage: Some(usage(12_864, 2, Some(0))),
            ..served()
        };
        // 12,864 tokens at 16,000 a second; the second one waits as long again.
        world.router.finish(request.id, &outcome(0.804), world.now);
        world.router.finish(queued.id, &outcome(1.608), world.now);
        world.wait(10.0);
    }
    let rate = world.router.prefill_rate(&id);
    assert!((rate - 16_000.0).abs() < 50.0, "{rate}");
    let request = world.request(&content(5_000, 100));
    world.decide(&request, None).unwrap();
    let disturbed = Outcome {
        ttft: Some(Duration::from_secs(8)),
        ..served()
    };
    world.router.finish(request.id, &disturbed, world.now);
    let rate = world.router.prefill_rate(&id);
    assert!(rate > 15_800.0, "{rate}: one slow sample proves little");
}

#[test]
fn a_preview_leaves_nothing_behind() {
    for policy in Policy::ALL.iter().copied() {
        let config = Config {
            policy,
            ..Config::default()
        };
        let mut world = World::new(2, 2, config);
        let request = world.request(&content(1, 100));
        let views = [world.view(&request)];
        let before = format!("{:?}", world.router);
        let preview = world
            .router
            .preview(&request, Some(&views), None, world.now, 1);
        assert_eq!(format!("{:?}", world.router), before, "{policy}");
        let decided = world
            .router
            .decide(&request, Some(&views), None, world.now, 1);
        assert_eq!(preview, decided, "{policy}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Decide(u8),
    FirstToken(u8),
    Finish(u8, Status),
    Abandon(u8),
    Follow(u8),
    Expire(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let status = prop_oneof![
        Just(Status::Served),
        Just(Status::Failed),
        Just(Status::Unreachable),
        Just(Status::NoAdapter),
        Just(Status::Refused),
        Just(Status::Cancelled),
    ];
    let step = prop_oneof![
        4 => (0..8_u8).prop_map(Step::Decide),
        2 => (0..8_u8).prop_map(Step::FirstToken),
        2 => (0..8_u8, status).prop_map(|(id, status)| Step::Finish(id, status)),
        1 => (0..8_u8).prop_map(Step::Abandon),
        1 => (0..8_u8).prop_map(Step::Follow),
        1 => (0..100_u16).prop_map(Step::Expire),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn whatever_happens_every_reservation_ends_exactly_once(steps in steps()) {
        let mut world = world();
        let mut peer = World::new(2, 2, Config::default());
        let mut last = std::collections::BTreeMap::new();
        let us = "r9".parse().unwrap();
        for step in steps {
            match step {
                Step::Decide(id) => {
                    let mut request = world.request(&content(u64::from(id), 10));
                    request.id = DecisionId::new(u128::from(id));
                    let decision = world.decide(&request, None).unwrap();
                    last.insert(id, (decision, request));
                }
                Step::FirstToken(id) => world.router.first_token(DecisionId::new(u128::from(id)), world.now),
                Step::Finish(id, status) => {
                    let id = DecisionId::new(u128::from(id));
                    world.router.finish(id, &ended(status), world.now);
                }
                Step::Abandon(id) => world.router.abandon(DecisionId::new(u128::from(id)), world.now),
                Step::Follow(id) => if let Some((decision, request)) = last.get(&id) {
                    let winner = crate::world::bound("c", "w2#1/1", 0);
                    world.router.follow(decision, request, &winner, world.now);
                },
                Step::Expire(seconds) => {
                    world.wait(f64::from(seconds));
                    world.router.expire(world.now);
                    peer.router.expire(world.now);
                }
            }
            for change in world.router.take_changes() {
                peer.router.apply_peer(&us, &change, world.now);
            }
            prop_assert_eq!(world.router.reserved(), peer.router.reserved(), "peers see the same");
            prop_assert!(world.router.reserved() <= world.router.open());
        }
        for id in 0..8 {
            world.router.finish(DecisionId::new(id), &served(), world.now);
        }
        prop_assert_eq!((world.router.reserved(), world.router.open()), (0, 0));
        let request = world.request(&content(99, 10));
        let decision = world.decide(&request, None).unwrap();
        let idle = decision.snapshot.candidates.iter();
        prop_assert!(idle.clone().all(|it| it.active == 0 && it.pending == Tokens::ZERO));
    }
}
