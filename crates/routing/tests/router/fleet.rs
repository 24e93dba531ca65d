//! The fleet as the router sees it.

use std::time::Duration;

use domain::{
    BlockSize, DecisionId, Epoch, RankLoad, ReservationChange, Target, TargetState, Timestamp,
    Tokens,
};
use placement::Barred;
use routing::{Config, NoTarget, Pin, Reason, Router};

use crate::world::{World, bound, content, ended, model, target, worker};

fn world() -> World {
    World::new(2, 2, Config::default())
}

#[test]
fn an_unknown_model_is_told_from_one_that_cannot_serve() {
    let mut world = world();
    let mut request = world.request(&content(1, 10));
    request.model = "other".parse().unwrap();
    let error = world.decide(&request, None).unwrap_err();
    assert_eq!(error.to_string(), "no worker serves model other");
    assert!(!error.is_retryable());
    for id in ["w1", "w2"] {
        let mut warming = worker(id, 2);
        warming.state = TargetState::Warming;
        world.router.set_worker(warming);
    }
    request.model = model();
    let error = world.decide(&request, None).unwrap_err();
    let expected = "no target of model m can take a request: 4 warming";
    assert_eq!(error.to_string(), expected);
    assert!(error.is_retryable());
    assert_eq!(world.router.open(), 0);
}

#[test]
fn a_registration_counts_until_its_lease_is_over() {
    let mut world = world();
    let mut lapsing = worker("w1", 2);
    lapsing.lease_until = world.now;
    world.router.set_worker(lapsing);
    let request = world.request(&content(1, 10));
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.place.worker().as_str(), "w2");
    assert_eq!(decision.snapshot.candidates.len(), 2);
}

#[test]
fn no_registration_ends_while_nothing_is_heard_of_the_fleet() {
    let mut world = world();
    let lease = Duration::from_secs(15);
    let mut only = worker("w1", 2);
    only.lease_until = world.now + lease;
    world.router.set_worker(only.clone());
    world.router.remove_worker(&"w2".parse().unwrap());
    world.router.hear_fleet(world.now);
    world.now += 10 * lease;
    let request = world.request(&content(1, 10));
    world.decide(&request, None).unwrap();

    // The bus is back, and whoever does not renew its registration within another lease is gone.
    for _ in 0..3 {
        assert!(world.router.is_registered(&only, world.now));
        world.router.hear_fleet(world.now);
        world.now += lease / 3;
    }
    assert!(!world.router.is_registered(&only, world.now));
    world.decide(&request, None).unwrap_err();
}

#[test]
fn an_incarnation_overrides_the_registration_in_either_order() {
    let mut router = Router::new("r1".parse().unwrap(), Config::default());
    let id = "w1".parse().unwrap();
    router.set_epoch(&id, Epoch::new(3));
    router.set_worker(worker("w1", 2));
    assert_eq!(router.epoch(&id), Some(Epoch::new(3)));
    router.set_epoch(&id, Epoch::new(4));
    assert_eq!(router.epoch(&id), Some(Epoch::new(4)));
}

#[test]
fn what_the_index_reports_of_a_target_counts_unless_its_worker_cannot_serve() {
    let mut world = world();
    let mut draining = worker("w2", 2);
    draining.state = TargetState::Draining;
    world.router.set_worker(draining);
    world.not_ready = vec![
        (target("w1#1/0"), TargetState::Suspect),
        (target("w2#1/0"), TargetState::Suspect),
    ];
    let request = world.request(&content(1, 10));
    let decision = world.decide(&request, None).unwrap();
    let states = decision.snapshot.candidates.iter().map(|it| it.state);
    use TargetState::{Draining, Ready, Suspect};
    let states: Vec<_> = states.collect();
    assert_eq!(states, [Suspect, Ready, Draining, Draining]);
}

#[test]
fn block_sizes_are_compared_in_tokens() {
    let mut world = world();
    let mut other = worker("w2", 1);
    other.block_size = BlockSize::new(512).unwrap();
    world.router.set_worker(other);
    let sizes: Vec<u32> = world
        .router
        .block_sizes(&model())
        .iter()
        .map(|it| it.get())
        .collect();
    assert_eq!(sizes, [128, 512]);
    let request = world.request(&content(1, 80));
    world.hold(&target("w1#1/0"), &content(1, 30));
    let mut coarse = world.view(&request);
    coarse.block_size = BlockSize::new(512).unwrap();
    coarse.groups[0].targets = vec![target("w2#1/0")];
    let depths = &mut coarse.groups[0].depths;
    (depths.gpu, depths.host, depths.disk) = (15, 15, 15);
    coarse.ceiling = 16;
    coarse.stored = 15;
    let views = [world.view(&request), coarse];
    let decision = world
        .router
        .decide(&request, Some(&views), None, world.now, 0)
        .unwrap();
    assert_eq!(
        decision.target(),
        Some(&target("w2#1/0")),
        "7,680 tokens against 3,840"
    );
    let overlap = decision.overlap.unwrap();
    let levels = [overlap.ceiling, overlap.stored, overlap.best, overlap.ready];
    assert_eq!(levels.map(Tokens::get), [8_192, 7_680, 7_680, 7_680]);
}

#[test]
fn a_pin_is_honoured_or_answered_with_the_valid_targets() {
    let mut world = world();
    let mut pinned = world.turn("c", &content(1, 10));
    pinned.pin = Some(Pin {
        worker: "w2".parse().unwrap(),
        dp_rank: Some("w2#1/1".parse::<Target>().unwrap().dp_rank),
    });
    let binding = bound("c", "w1#1/0", 1_280);
    let decision = world.decide(&pinned, Some(&binding)).unwrap();
    assert_eq!(decision.target(), Some(&target("w2#1/1")));
    assert_eq!(decision.reason, Reason::Pinned);
    pinned.pin = Some(Pin {
        worker: "w3".parse().unwrap(),
        dp_rank: None,
    });
    let error = world.decide(&pinned, None).unwrap_err();
    assert!(matches!(&error, NoTarget::InvalidPin { valid } if valid.len() == 4));
    let expected = "no such target: choose one of w1#1/0, w1#1/1, w2#1/0, w2#1/1";
    assert_eq!(error.to_string(), expected);
}

fn gauge(at: Timestamp, waiting: u32) -> RankLoad {
    RankLoad {
        dp_rank: domain::DpRank::new(0),
        running: 1,
        waiting,
        kv_used: 0.0,
        at,
    }
}

#[test]
fn requests_that_no_router_sent_count_as_load_until_the_gauge_is_old() {
    let mut world = world();
    let id = "w1".parse().unwrap();
    let foreign = |world: &mut World| {
        let request = world.request(&content(1, 10));
        let decision = world.decide(&request, None).unwrap();
        world.router.abandon(request.id, world.now);
        decision.snapshot.candidates[0].foreign.get()
    };
    world.router.set_load(&id, &[gauge(world.now, 3)]);
    assert!(foreign(&mut world) > 0);
    world.wait(11.0);
    assert_eq!(foreign(&mut world), 0);
}

#[test]
fn a_rank_is_as_busy_as_the_most_who_know_say() {
    let mut world = World::new(1, 2, Config::default());
    let id = "w1".parse().unwrap();
    let busy = |world: &mut World| {
        let request = world.request(&content(1, 10));
        let decision = world.decide(&request, None).unwrap();
        world.router.abandon(request.id, world.now);
        let candidates = decision.snapshot.candidates.iter();
        candidates.map(|it| it.active).collect::<Vec<_>>()
    };
    world.router.set_load(&id, &[gauge(world.now, 3)]);
    assert_eq!(busy(&mut world), [4, 0], "one runs and three wait");
    let peer = "r2".parse().unwrap();
    for number in 0..2 {
        let reserve = ReservationChange::Reserve {
            id: DecisionId::new(1_000 + number),
            target: target("w1#1/1"),
            uncached: Tokens::new(1),
            landmarks: Vec::new(),
            lease_until: world.now + Duration::from_secs(60),
            conversation: None,
        };
        world.router.apply_peer(&peer, &reserve, world.now);
    }
    assert_eq!(busy(&mut world), [4, 2], "two are on their way from a peer");
}

#[test]
fn our_own_waiting_requests_are_not_counted_twice() {
    let mut world = World::new(1, 1, Config::default());
    for number in 0..3 {
        let request = world.request(&content(number, 10));
        world.decide(&request, None).unwrap();
    }
    let id = "w1".parse().unwrap();
    world.router.set_load(&id, &[gauge(world.now, 3)]);
    let request = world.request(&content(9, 10));
    let decision = world.decide(&request, None).unwrap();
    assert_eq!(decision.snapshot.candidates[0].foreign, Tokens::ZERO);
}

/// BC-30: an engine that has refused once for lack of room is asked again after ten seconds, whatever gauges say.
#[test]
fn a_target_is_avoided_after_a_failure_for_its_lease_and_no_longer() {
    let mut world = world();
    let healthy = |world: &mut World, at: &Target| {
        let load = RankLoad {
            dp_rank: at.dp_rank,
            ..gauge(world.now, 0)
        };
        world.router.set_load(&at.worker, &[load]);
    };
    let request = world.request(&content(1, 10));
    let decision = world.decide(&request, None).unwrap();
    let failed = decision.target().unwrap().clone();
    world
        .router
        .finish(request.id, &ended(routing::Status::Refused), world.now);
    world.hold(&failed, &content(1, 10));
    let barred = |world: &mut World| {
        healthy(world, &failed);
        let request = world.request(&content(1, 10));
        let decision = world.decide(&request, None).unwrap();
        world.router.abandon(request.id, world.now);
        let barred = decision.candidate(&failed).unwrap().barred;
        (barred, *decision.target().unwrap() == failed)
    };
    assert_eq!(barred(&mut world), (Some(Barred::FailedLately), false));
    world.wait(9.9);
    assert_eq!(barred(&mut world), (Some(Barred::FailedLately), false));
    world.wait(0.1);
    assert_eq!(
        barred(&mut world),
        (None, true),
        "it holds the prefix and serves again"
    );
}
