//! The promises of the queue one by one.

mod naive;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use domain::{TenantId, Timestamp, Tokens};
use proptest::prelude::*;

use super::*;

const BOUNDS: Bounds = Bounds {
    max_waiting: 12,
    max_wait: Duration::from_secs(30),
};

fn at(milliseconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(milliseconds)
}

/// Tenant `t2` has twice the weight of `t1`.
fn asking(tenant: u32, priority: i64, tokens: u64) -> Asking {
    Asking {
        tenant: TenantId::new(&format!("t{tenant}")).unwrap(),
        weight: NonZeroU32::new(tenant).unwrap(),
        priority: Priority::new(priority).unwrap(),
        tokens: Tokens::new(tokens),
    }
}

fn waits(entered: Entered) -> Ticket {
    match entered {
        Entered::Waits {
            ticket,
            displaced: None,
        } => ticket,
        other => panic!("{other:?}"),
    }
}

fn refused(entered: Entered) -> Refusal {
    match entered {
        Entered::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Room for one request.
const ONE: Room = Room {
    tokens: f64::INFINITY,
    requests: 1,
};

/// Lets all that wait go, one after the other, and places each at once.
fn empty(queue: &mut Queue, now: Timestamp) -> Vec<Ticket> {
    let mut order = Vec::new();
    while let Some(ticket) = queue.let_go(ONE, now).pop() {
        queue.leave(ticket, now);
        order.push(ticket);
    }
    order
}

proptest! {
    #[test]
    fn no_tenant_gets_ahead_of_another_by_more_than_a_request_of_each(
        asked in prop::collection::vec((1..=3_u32, 256..200_000_u64), 3..200)
    ) {
        let bounds = Bounds { max_waiting: usize::MAX, ..BOUNDS };
        let mut queue = Queue::new(bounds);
        let mut left: BTreeMap<u32, usize> = BTreeMap::new();
        let mut of = HashMap::new();
        let mut now = at(0);
        for (tenant, tokens) in asked {
            now += Duration::from_millis(170);
            let ticket = waits(queue.enter(asking(tenant, 0, tokens), false, now));
            of.insert(ticket, (tenant, tokens as f64 / f64::from(tenant)));
            *left.entry(tenant).or_default() += 1;
        }
        let largest = |tenant: u32| {
            let shares = of.values().filter(|it| it.0 == tenant);
            shares.fold(0.0, |a: f64, b| a.max(b.1))
        };
        let mut served: HashMap<u32, f64> = HashMap::new();
        while left.values().all(|it| 0 < *it) {
            now += Duration::from_millis(90);
            let ticket = queue.let_go(ONE, now).pop().unwrap();
            queue.leave(ticket, now);
            let (tenant, share) = of[&ticket];
            *served.entry(tenant).or_default() += share;
            *left.get_mut(&tenant).unwrap() -= 1;
            for (one, other) in left.keys().flat_map(|a| left.keys().map(move |b| (*a, *b))) {
                let ahead = served.get(&one).unwrap_or(&0.0) - served.get(&other).unwrap_or(&0.0);
                prop_assert!(ahead <= largest(one) + largest(other) + 1e-6);
            }
        }
    }
}

#[test]
fn a_higher_priority_goes_first_and_within_one_the_oldest() {
    let mut queue = Queue::new(BOUNDS);
    let priorities = [0, 5, -3, 5, 0];
    let tickets = priorities.map(|it| waits(queue.enter(asking(1, it, 900), false, at(0))));

    let order = empty(&mut queue, at(10));

    let expected = [1, 3, 0, 4, 2].map(|it: usize| tickets[it]);
    assert_eq!(order, expected);
}

#[test]
fn a_request_of_a_light_tenant_goes_next_however_long_a_flood_has_waited() {
    let mut queue = Queue::new(BOUNDS);
    let flood: Vec<Ticket> = (0..8)
        .map(|_| waits(queue.enter(asking(1, 0, 100_000), false, at(0))))
        .collect();
    let light = waits(queue.enter(asking(2, 0, 300), false, at(20_000)));

    let order = empty(&mut queue, at(20_001));

    assert_eq!(order[..2], [flood[0], light]);
}

#[test]
fn the_lowest_priority_goes_in_time_whatever_comes_after_it() {
    let mut queue = Queue::new(BOUNDS);
    let lowest = waits(queue.enter(asking(1, -10, 300), false, at(0)));
    let mut went = None;
    for hundredth in 1..300 {
        let now = at(100 * hundredth);
        assert_eq!(queue.expire(now), []);
        // As many come as go.
        waits(queue.enter(asking(1, 10, 100_000), false, now));
        let next = queue.let_go(ONE, now).pop().unwrap();
        queue.leave(next, now);
        if next == lowest {
            went = Some(now);
            break;
        }
    }
    let went = went.expect("before the longest wait");
    assert!(went.since(at(0)) <= Duration::from_secs(21), "{went:?}");
}

#[test]
fn who_comes_while_others_wait_does_not_pass_them_though_there_is_room() {
    let mut queue = Queue::new(BOUNDS);
    assert_eq!(queue.enter(asking(1, 0, 9), true, at(0)), Entered::Goes);
    waits(queue.enter(asking(1, 0, 9), false, at(0)));
    waits(queue.enter(asking(2, 0, 9), true, at(0)));
}

#[test]
fn those_let_go_take_up_room_until_they_are_placed() {
    let mut queue = Queue::new(BOUNDS);
    for _ in 0..5 {
        waits(queue.enter(asking(1, 0, 1_000), false, at(0)));
    }
    let room = Room {
        tokens: 1_500.0,
        requests: u32::MAX,
    };
    let first = queue.let_go(room, at(1));
    assert_eq!(first.len(), 2, "the second finds some room left");
    assert_eq!(queue.let_go(room, at(2)), []);
    queue.leave(first[0], at(3));
    assert_eq!(queue.let_go(room, at(3)).len(), 1);
}

#[test]
fn a_full_queue_refuses_the_flood_and_takes_the_others() {
    let mut queue = Queue::new(BOUNDS);
    let flood: Vec<Ticket> = (0..12)
        .map(|_| waits(queue.enter(asking(1, 0, 1_000), false, at(0))))
        .collect();
    let full = refused(queue.enter(asking(1, 0, 1_000), false, at(0)));
    assert_eq!(full.cause, Cause::Full);
    assert_eq!(full.retry_after, Duration::from_secs(5), "nothing is known");
    let low = refused(queue.enter(asking(2, -1, 1_000), false, at(0)));
    assert_eq!(low.cause, Cause::Full);

    let Entered::Waits {
        displaced: Some((victim, refusal)),
        ..
    } = queue.enter(asking(2, 0, 1_000), false, at(0))
    else {
        panic!("the flood gives way")
    };
    assert_eq!(victim, flood[11]);
    assert_eq!(refusal.cause, Cause::Displaced);
    assert_eq!(queue.len(), 12);
}

#[test]
fn whoever_would_wait_too_long_is_told_when_to_come_again() {
    let bounds = Bounds {
        max_waiting: 1_000,
        ..BOUNDS
    };
    let mut queue = Queue::new(bounds);
    for _ in 0..100 {
        waits(queue.enter(asking(1, 0, 1_000), false, at(0)));
    }
    // A thousand tokens a second: what waits is done in 90 s.
    for second in 1..=10 {
        let ticket = queue.let_go(ONE, at(1_000 * second)).pop().unwrap();
        queue.leave(ticket, at(1_000 * second));
    }
    let now = at(10_000);
    let late = refused(queue.enter(asking(1, 0, 1_000), false, now));
    assert_eq!(late.cause, Cause::Late);
    assert_eq!(late.retry_after, Duration::from_secs(60), "no later");
    assert_eq!(
        queue.standing(&asking(1, 0, 1_000), false, now),
        Standing::Refused(late)
    );
    // Those are ten classes up by now, and nobody waits above them.
    let above = asking(3, 10, 1_000);
    assert_eq!(queue.standing(&above, false, now), Standing::Waits);
    waits(queue.enter(above, false, now));
}

#[test]
fn what_is_said_of_a_wait_is_what_it_takes() {
    let bounds = Bounds {
        max_waiting: 20,
        ..BOUNDS
    };
    let mut queue = Queue::new(bounds);
    for _ in 0..20 {
        waits(queue.enter(asking(1, 10, 1_000), false, at(0)));
    }
    for second in 1..=10 {
        let ticket = queue.let_go(ONE, at(1_000 * second)).pop().unwrap();
        queue.leave(ticket, at(1_000 * second));
        waits(queue.enter(asking(1, 10, 1_000), false, at(1_000 * second)));
    }
    let full = refused(queue.enter(asking(1, 10, 1_000), false, at(10_000)));
    assert_eq!(full.cause, Cause::Full);
    let seconds = full.retry_after.as_secs_f64();
    assert!((15.0..=25.0).contains(&seconds), "{seconds}");
}

#[test]
fn numbers_beyond_the_priorities_are_none_or_the_nearest() {
    for number in [-11, 11, i64::MIN, i64::MAX] {
        assert_eq!(Priority::new(number), None);
    }
    assert_eq!(Priority::new(-10), Some(Priority::LOWEST));
    assert_eq!(Priority::nearest(i64::MAX), Priority::HIGHEST);
    assert_eq!(Priority::nearest(3).get(), 3);
}
