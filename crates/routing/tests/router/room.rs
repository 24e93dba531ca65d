//! What the targets of a model may still be given.

use std::time::Duration;

use domain::{DecisionId, DpRank, RankLoad, ReservationChange, Timestamp, Tokens};
use routing::admission::{Limit, Room};
use routing::{Config, Outcome, Router, Status};

use crate::world::{RATE, World, content, model, target, worker};

const TEN_SECONDS: Limit = Limit {
    work: Some(Duration::from_secs(10)),
    requests: None,
};
/// A prefill of 12.8 s, for those who start at half a block.
const LONG: u64 = 800;

fn has_room(world: &World) -> bool {
    let has_room = world.router.has_room(&model(), &TEN_SECONDS, world.now);
    let room = world.router.room(&model(), &TEN_SECONDS, world.now);
    assert_eq!(has_room, room.is_some());
    has_room
}

/// One long request at each of two ranks.
fn busy() -> (World, DecisionId) {
    let mut world = World::new(1, 2, Config::default());
    assert!(has_room(&world));
    let first = world.request(&content(1, LONG));
    world.decide(&first, None).unwrap();
    assert!(has_room(&world));
    let second = world.request(&content(2, LONG));
    world.decide(&second, None).unwrap();
    (world, first.id)
}

/// What both ranks' engines say at a time.
fn gauges(router: &mut Router, waiting: u32, at: Timestamp) {
    let load = |dp_rank| RankLoad {
        dp_rank: DpRank::new(dp_rank),
        running: 1,
        waiting,
        kv_used: 0.0,
        at,
    };
    let w1 = "w1".parse().unwrap();
    router.set_load(&w1, &[load(0), load(1)]);
}

#[test]
fn there_is_room_while_any_target_has_less_before_it_than_the_limit() {
    let (mut world, first) = busy();
    assert!(!has_room(&world));
    assert_eq!(
        world.router.room(&model(), &TEN_SECONDS, world.now),
        Room::NONE
    );

    world.router.first_token(first, world.now);
    let room = world.router.room(&model(), &TEN_SECONDS, world.now);
    assert_eq!(room.tokens, 10.0 * RATE);

    let third = world.request(&content(3, LONG));
    world.decide(&third, None).unwrap();
    assert!(!has_room(&world));
    // The work proceeds.
    world.now += Duration::from_secs(3);
    assert!(has_room(&world));
}

#[test]
fn an_engine_in_which_nothing_waits_is_below_its_limit() {
    let (mut world, _) = busy();
    let sent = world.now;
    world.now += Duration::from_millis(100);
    gauges(&mut world.router, 1, world.now);
    assert!(!has_room(&world));
    gauges(&mut world.router, 0, world.now);
    assert!(has_room(&world));
    // What it said before the work came says nothing of it.
    gauges(&mut world.router, 0, sent - Duration::from_millis(1));
    assert!(!has_room(&world));
}

#[test]
fn what_an_engine_says_is_waiting_counts_where_it_is_slower_than_is_known() {
    let mut world = World::new(1, 2, Config::default());
    for number in 0..24 {
        let request = world.request(&content(number, 100));
        world.decide(&request, None).unwrap();
    }
    // 38 s of work at two ranks, done by now at the rate that is known of them.
    world.wait(30.0);
    let pending = |rank| {
        let target = target(&format!("w1#1/{rank}"));
        world.router.pending(&target, world.now)
    };
    assert_eq!([pending(0), pending(1)], [Tokens::ZERO; 2]);
    assert!(has_room(&world));

    gauges(&mut world.router, 10, world.now);
    assert!(!has_room(&world));
    // What was sent since comes on top.
    gauges(&mut world.router, 3, world.now);
    assert!(has_room(&world));
    world.wait(0.1);
    for number in 24..32 {
        let request = world.request(&content(number, 100));
        world.decide(&request, None).unwrap();
    }
    assert!(!has_room(&world));
}

#[test]
fn work_of_others_that_waits_there_counts() {
    let mut world = World::new(1, 2, Config::default());
    let mean = world.request(&content(1, 100));
    let decided = world.decide(&mean, None).unwrap();
    world.router.finish(
        decided.id,
        &Outcome {
            status: Status::Cancelled,
            ttft: None,
            duration: None,
            observed_rank: None,
            usage: None,
        },
        world.now,
    );
    gauges(&mut world.router, 1, world.now);
    assert!(has_room(&world));
    gauges(&mut world.router, 1_000, world.now);
    assert!(!has_room(&world));
}

#[test]
fn requests_are_limited_where_that_is_set() {
    let mut world = World::new(1, 2, Config::default());
    let limit = Limit {
        work: None,
        requests: Some(2),
    };
    for left in (0..4).rev() {
        let short = world.request(&content(left, 1));
        let decided = world.decide(&short, None).unwrap();
        world.router.first_token(decided.id, world.now);
        let room = world.router.room(&model(), &limit, world.now);
        assert_eq!(u64::from(room.requests), left);
        assert_eq!(room.is_some(), 0 < left);
    }
}

#[test]
fn targets_that_take_nothing_new_have_no_room_and_where_none_does_nobody_waits() {
    let (mut world, _) = busy();
    let mut warming = worker("w2", 2);
    warming.state = domain::TargetState::Warming;
    world.router.set_worker(warming.clone());
    assert!(!has_room(&world));
    warming.state = domain::TargetState::Ready;
    world.router.set_worker(warming);
    assert!(has_room(&world));

    let empty = World::new(0, 1, Config::default());
    let room = empty.router.room(&model(), &TEN_SECONDS, empty.now);
    assert_eq!(room, Room::ALL);
    assert!(has_room(&empty));
}

#[test]
fn a_target_that_failed_lately_has_no_room_unless_all_did() {
    let mut world = World::new(1, 2, Config::default());
    let failed = Outcome {
        status: Status::Failed,
        ttft: None,
        duration: None,
        observed_rank: None,
        usage: None,
    };
    let one = world.request(&content(1, 1));
    let decided = world.decide(&one, None).unwrap();
    world.router.finish(decided.id, &failed, world.now);
    let two = world.request(&content(2, LONG));
    world.decide(&two, None).unwrap();
    assert!(!has_room(&world), "the other rank is at its limit");
    let both = world.router.room(
        &model(),
        &Limit {
            work: None,
            requests: None,
        },
        world.now,
    );
    assert_eq!(both, Room::ALL);
    world.router.finish(two.id, &failed, world.now);
    assert!(has_room(&world));
}

#[test]
fn what_other_routers_have_reserved_takes_up_room() {
    let mut world = World::new(1, 2, Config::default());
    let peer = "r2".parse().unwrap();
    for rank in 0..2 {
        assert!(has_room(&world));
        let reserve = ReservationChange::Reserve {
            id: DecisionId::new(900 + rank),
            target: target(&format!("w1#1/{rank}")),
            uncached: Tokens::new(100_000),
            landmarks: Vec::new(),
            lease_until: world.now + Duration::from_secs(60),
            conversation: None,
        };
        world.router.apply_peer(&peer, &reserve, world.now);
    }
    assert!(!has_room(&world));
    let id = DecisionId::new(900);
    let release = ReservationChange::Release { id };
    world.router.apply_peer(&peer, &release, world.now);
    assert!(has_room(&world));
}
