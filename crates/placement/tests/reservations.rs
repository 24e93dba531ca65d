//! The book of reservations against a naive one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{DecisionId, SequenceHash, Target, Timestamp, Tokens};
use placement::{Reservation, Reservations, landmarks};
use proptest::prelude::*;

const RATE: f64 = 1_000.0;

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_secs_f64(seconds)
}

fn target(rank: u32) -> Target {
    format!("w1#1/{rank}").parse().unwrap()
}

fn hashes(numbers: impl IntoIterator<Item = u64>) -> Vec<SequenceHash> {
    numbers.into_iter().map(SequenceHash::new).collect()
}

fn in_flight(book: &Reservations, rank: u32, request: &[SequenceHash]) -> u32 {
    let found = book.in_flight(request);
    book.at(&target(rank), &found, at(0.0)).in_flight
}

fn reservation(id: u128, rank: u32, uncached: u64, lease_until: Timestamp) -> Reservation {
    Reservation {
        id: DecisionId::new(id),
        router: "r1".parse().unwrap(),
        target: target(rank),
        uncached: Tokens::new(uncached),
        landmarks: Vec::new(),
        lease_until,
    }
}

#[test]
fn what_its_engine_has_not_begun_is_overdue_once_all_before_it_should_be_done() {
    let mut book = Reservations::default();
    let lease = at(1_000.0);
    for (id, begins) in [(1, 0.0), (2, 1.0), (3, 2.0)] {
        let work = reservation(id, 0, 2_000, lease);
        book.reserve(work, RATE, at(begins)).unwrap();
    }
    let overdue = |book: &Reservations, waiting, seen, now| {
        let overdue = book.overdue(&target(0), waiting, at(seen), at(now));
        overdue.as_secs_f64()
    };
    // They should end at 2, 4 and 6 s.
    assert_eq!(overdue(&book, 2, 3.0, 3.5), 0.0);
    assert_eq!(
        overdue(&book, 2, 3.0, 9.0),
        5.0,
        "the second is the oldest of two"
    );
    assert_eq!(
        overdue(&book, 1, 3.0, 9.0),
        3.0,
        "what runs is not waited for"
    );
    assert_eq!(overdue(&book, 0, 3.0, 9.0), 0.0);
    assert_eq!(
        overdue(&book, 1, 1.5, 9.0),
        5.0,
        "the third was not there then"
    );
    assert_eq!(overdue(&book, 99, 3.0, 9.0), 7.0);
    assert_eq!(
        book.overdue(&target(1), 3, at(3.0), at(9.0)),
        Duration::ZERO
    );
    book.release(DecisionId::new(2), at(9.0));
    assert_eq!(overdue(&book, 1, 3.0, 9.0), 3.0);
}

#[test]
fn work_falls_at_the_targets_rate_oldest_first() {
    let mut book = Reservations::default();
    let lease = at(100.0);
    book.reserve(reservation(1, 0, 3_000, lease), RATE, at(0.0))
        .unwrap();
    book.reserve(reservation(2, 0, 2_000, lease), RATE, at(1.0))
        .unwrap();
    let pending = |book: &Reservations, seconds| book.pending(&target(0), at(seconds)).get();
    assert_eq!(pending(&book, 1.0), 4_000);
    assert_eq!(pending(&book, 2.5), 2_500);
    book.release(DecisionId::new(1), at(2.5));
    assert_eq!(pending(&book, 2.5), 2_000, "the younger one has not begun");
    assert_eq!(pending(&book, 9.0), 0);
    assert_eq!(book.count(&target(0)), 1, "it lives until its first token");
    assert_eq!(book.pending(&target(1), at(0.0)), Tokens::ZERO);
}

#[test]
fn the_dust_of_floating_point_is_no_token() {
    let pending = |start_millis: u64, spent_millis: u64| {
        let mut book = Reservations::default();
        let start = Timestamp::from_micros(start_millis * 1_000);
        let lease = start + Duration::from_secs(100);
        book.reserve(reservation(1, 0, 3_580, lease), RATE, start)
            .unwrap();
        book.pending(&target(0), start + Duration::from_millis(spent_millis))
            .get()
    };
    for spent_millis in 0..4_000 {
        let left = 3_580_u64.saturating_sub(spent_millis);
        assert_eq!(
            pending(1_000, spent_millis),
            left,
            "after {spent_millis} ms"
        );
    }
}

#[test]
fn a_second_reservation_of_one_decision_moves_the_first() {
    let mut book = Reservations::default();
    let lease = at(100.0);
    book.reserve(reservation(1, 0, 3_000, lease), RATE, at(0.0))
        .unwrap();
    book.reserve(reservation(1, 1, 2_000, lease), RATE, at(0.0))
        .unwrap();
    assert_eq!((book.count(&target(0)), book.count(&target(1))), (0, 1));
    assert_eq!(book.pending(&target(0), at(0.0)), Tokens::ZERO);
    assert_eq!(book.len(), 1);
}

#[test]
fn a_gauge_is_compared_with_what_was_live_when_it_was_taken() {
    let mut book = Reservations::default();
    let lease = at(100.0);
    book.reserve(reservation(1, 0, 1, lease), RATE, at(1.0))
        .unwrap();
    book.reserve(reservation(2, 0, 1, lease), RATE, at(3.0))
        .unwrap();
    book.release(DecisionId::new(1), at(4.0));
    let count = |seconds| book.count_at(&target(0), at(seconds));
    assert_eq!([0.5, 1.0, 3.5, 4.0].map(count), [0, 1, 2, 1]);
}

#[test]
fn landmarks_are_every_64th_hash_and_the_last() {
    let landmarks = |blocks: u64| {
        let landmarks = landmarks(&hashes(1..=blocks));
        landmarks.iter().map(|it| it.get()).collect::<Vec<_>>()
    };
    assert_eq!(landmarks(0), [0; 0]);
    assert_eq!(landmarks(3), [3]);
    assert_eq!(landmarks(64), [64]);
    assert_eq!(landmarks(130), [64, 128, 130]);
}

#[test]
fn a_prefix_in_flight_is_found_to_the_landmark() {
    let mut book = Reservations::default();
    let mut first = reservation(1, 0, 1, at(100.0));
    first.landmarks = landmarks(&hashes(1..=200));
    book.reserve(first, RATE, at(0.0)).unwrap();
    let mut second = reservation(2, 1, 1, at(100.0));
    second.landmarks = landmarks(&hashes(1..=70));
    book.reserve(second, RATE, at(0.0)).unwrap();
    let extended = hashes(1..=300);
    assert_eq!(in_flight(&book, 0, &extended), 200);
    assert_eq!(in_flight(&book, 1, &extended), 70);
    let diverging = hashes((1..=150).chain(1_000..1_100));
    assert_eq!(in_flight(&book, 0, &diverging), 128);
    book.release(DecisionId::new(1), at(0.0));
    assert_eq!(in_flight(&book, 0, &extended), 0);
}

#[test]
fn a_lease_far_in_the_future_is_cut() {
    let mut book = Reservations::default();
    let never = Timestamp::from_micros(u64::MAX);
    book.reserve(reservation(1, 0, 1_000_000_000, never), RATE, at(0.0))
        .unwrap();
    assert_eq!(book.expire(at(601.0)).len(), 1);
    assert!(book.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Reserve {
        id: u128,
        rank: u32,
        uncached: u64,
        lease: u64,
        blocks: u64,
    },
    Release {
        id: u128,
    },
    Expire,
    Wait {
        millis: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..12_u128, 0..3_u32, 0..5_000_u64, 0..20_u64, 0..200_u64).prop_map(
            |(id, rank, uncached, lease, blocks)| Step::Reserve { id, rank, uncached, lease, blocks }
        ),
        3 => (0..12_u128).prop_map(|id| Step::Release { id }),
        1 => Just(Step::Expire),
        3 => (0..4_000_u64).prop_map(|millis| Step::Wait { millis }),
    ];
    prop::collection::vec(step, 0..80)
}

/// What a reader of the documentation would write: each reservation by itself, replayed in small time.
#[derive(Default)]
struct Naive {
    live: BTreeMap<u128, Lived>,
    order: u64,
}

struct Lived {
    rank: u32,
    left: f64,
    lease_until: Timestamp,
    order: u64,
    blocks: u64,
}

impl Naive {
    fn wait(&mut self, seconds: f64) {
        for rank in 0..3 {
            let mut budget = seconds * RATE;
            let mut here: Vec<&mut Lived> = self
                .live
                .values_mut()
                .filter(|it| it.rank == rank)
                .collect();
            here.sort_by_key(|it| it.order);
            for lived in here {
                let done = lived.left.min(budget);
                lived.left -= done;
                budget -= done;
            }
        }
    }

    fn here(&self, rank: u32) -> impl Iterator<Item = &Lived> {
        self.live.values().filter(move |it| it.rank == rank)
    }
}

proptest! {
    #[test]
    fn nothing_leaks_and_nothing_goes_negative(steps in steps()) {
        let (mut book, mut naive, mut now) = (Reservations::default(), Naive::default(), at(1.0));
        for step in steps {
            match step {
                Step::Reserve { id, rank, uncached, lease, blocks } => {
                    let lease_until = now + Duration::from_secs(lease);
                    let mut reservation = reservation(id, rank, uncached, lease_until);
                    reservation.landmarks = landmarks(&hashes(1..=blocks));
                    book.reserve(reservation, RATE, now).unwrap();
                    naive.order += 1;
                    let (left, order) = (uncached as f64, naive.order);
                    naive.live.insert(id, Lived { rank, left, lease_until, order, blocks });
                }
                Step::Release { id } => {
                    let was = naive.live.remove(&id).is_some();
                    prop_assert_eq!(book.release(DecisionId::new(id), now).is_some(), was);
                }
                Step::Expire => {
                    let before = naive.live.len();
                    naive.live.retain(|_, it| it.lease_until > now);
                    prop_assert_eq!(book.expire(now).len(), before - naive.live.len());
                }
                Step::Wait { millis } => {
                    now += Duration::from_millis(millis);
                    naive.wait(millis as f64 / 1e3);
                }
            }
            let request = hashes(1..=200);
            let in_flight = book.in_flight(&request);
            for rank in 0..3 {
                let left: f64 = naive.here(rank).map(|it| it.left).sum();
                let pending = book.pending(&target(rank), now).as_f64();
                prop_assert!((pending - left).abs() <= 1.0, "{pending} {left}");
                prop_assert_eq!(book.count(&target(rank)) as usize, naive.here(rank).count());
                let deepest = naive.here(rank).map(|it| it.blocks).max().unwrap_or(0);
                let reserved = book.at(&target(rank), &in_flight, now);
                prop_assert_eq!(u64::from(reserved.in_flight), deepest);
                prop_assert_eq!(reserved.pending, book.pending(&target(rank), now));
                prop_assert_eq!(reserved.count, book.count(&target(rank)));
            }
            prop_assert_eq!(book.len(), naive.live.len());
        }
        now += Duration::from_secs(1_000);
        book.expire(now);
        prop_assert!(book.is_empty());
        prop_assert!((0..3).all(|rank| book.pending(&target(rank), now) == Tokens::ZERO));
        prop_assert!((0..3).all(|rank| in_flight(&book, rank, &hashes(1..=200)) == 0));
    }
}

/// Requests that fork from each other anywhere: of each target the deepest landmark that the request has too.
fn forks() -> impl Strategy<Value = Vec<(u128, u32, usize, usize, bool)>> {
    prop::collection::vec(
        (
            0..20_u128,
            0..4_u32,
            0..500_usize,
            0..500_usize,
            any::<bool>(),
        ),
        1..40,
    )
}

/// `blocks` hashes: up to the fork those that all have, then those of whoever forks there and has the name.
fn forked(fork: usize, blocks: usize, name: u64) -> Vec<SequenceHash> {
    let shared = (1..=fork.min(blocks)).map(|it| it as u64);
    let own = |it: usize| (1 + fork as u64) * 1_000_000 + name % 2 * 1_000 + it as u64;
    hashes(shared.chain((fork + 1..=blocks).map(own)))
}

proptest! {
    #[test]
    fn whatever_is_in_flight_is_found_to_the_landmark(steps in forks(), fork in (0..40_usize).prop_map(|it| it * 13), blocks in 0..500_usize) {
        let mut book = Reservations::default();
        let mut live = BTreeMap::new();
        for (id, rank, fork, blocks, ends) in steps {
            if ends {
                book.release(DecisionId::new(id), at(0.0));
                live.remove(&id);
                continue;
            }
            let mut one = reservation(id, rank, 1, at(100.0));
            one.landmarks = landmarks(&forked(fork, blocks, id as u64));
            live.insert(id, (rank, one.landmarks.clone()));
            book.reserve(one, RATE, at(0.0)).unwrap();
        }
        let request = forked(fork, blocks, 5);
        for rank in 0..4 {
            let here = live.values().filter(|it| it.0 == rank);
            let depth = |hash: &SequenceHash| request.iter().position(|it| it == hash).map(|it| it + 1);
            let deepest = here.flat_map(|it| &it.1).filter_map(depth).max().unwrap_or(0);
            prop_assert_eq!(in_flight(&book, rank, &request) as usize, deepest, "rank {}", rank);
        }
    }
}
