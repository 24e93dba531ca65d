//! What is expected of targets, against sums over all turns ever seen.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{DecisionId, Target, Timestamp, Tokens};
use placement::{BoundTurn, Obligations};
use proptest::prelude::*;

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_secs_f64(seconds)
}

fn target(rank: u32) -> Target {
    format!("w1#1/{rank}").parse().unwrap()
}

fn turn(conversation: u64, id: u128, rank: u32, uncached: u64) -> BoundTurn {
    BoundTurn {
        conversation,
        id: DecisionId::new(id),
        target: target(rank),
        uncached: Tokens::new(uncached),
    }
}

/// A conversation at `rank` with a turn of `uncached` tokens every `gap` seconds from 0 on until `until`.
fn steady(
    book: &mut Obligations,
    conversation: u64,
    rank: u32,
    uncached: u64,
    gap: f64,
    until: f64,
) {
    let turns = (until / gap) as u32;
    for number in 0..=turns {
        let id = u128::from(conversation) << 32 | u128::from(number);
        let now = at(f64::from(number) * gap);
        book.turn(turn(conversation, id, rank, uncached), now);
    }
}

#[test]
fn a_conversation_is_expected_to_go_on_as_it_has() {
    let mut book = Obligations::default();
    steady(&mut book, 1, 0, 100, 1.0, 600.0);
    let minute = book.at(&target(0), None, at(600.0)).tokens;
    assert!((5_500.0..6_500.0).contains(&minute), "{minute}");
    let silent = book.at(&target(0), None, at(720.0)).tokens;
    assert!(
        (silent / minute - (-1.0_f64).exp()).abs() < 1e-9,
        "{silent}"
    );
}

#[test]
fn one_of_which_nothing_is_known_counts_as_the_mean_of_all() {
    let mut book = Obligations::default();
    steady(&mut book, 1, 0, 100, 1.0, 600.0);
    book.turn(turn(2, 1, 1, 50_000), at(600.0));
    let known = book.at(&target(0), None, at(600.0)).tokens;
    let new = book.at(&target(1), None, at(600.0)).tokens;
    assert!(
        (0.85..1.15).contains(&(new / known)),
        "{new} and {known}: its first prompt says nothing of its rate"
    );
}

#[test]
fn busy_ones_are_told_from_others_within_a_minute() {
    let mut book = Obligations::default();
    let order = |it: &BoundTurn| it.id.get();
    let mut turns: Vec<(f64, BoundTurn)> = Vec::new();
    for conversation in 0..8 {
        let gap = if conversation == 0 { 1.0 } else { 10.0 };
        let each = (0..(60.0 / gap) as u32).map(|number| {
            let rank = u32::try_from(conversation).unwrap();
            let id = u128::from(conversation) << 32 | u128::from(number);
            (f64::from(number) * gap, turn(conversation, id, rank, 200))
        });
        turns.extend(each);
    }
    turns.sort_by(|one, other| {
        one.0
            .total_cmp(&other.0)
            .then(order(&one.1).cmp(&order(&other.1)))
    });
    for (seconds, turn) in turns {
        book.turn(turn, at(seconds));
    }
    let of = |rank| book.at(&target(rank), None, at(60.0)).tokens;
    assert!(of(0) > 3.0 * of(1), "{} and {}", of(0), of(1));
}

#[test]
fn what_a_conversation_asks_itself_is_left_out_for_it() {
    let mut book = Obligations::default();
    book.turn(turn(1, 1, 0, 100), at(1.0));
    book.turn(turn(2, 2, 0, 100), at(1.0));
    let all = book.at(&target(0), None, at(2.0));
    let others = book.at(&target(0), Some(1), at(2.0));
    assert_eq!((all.conversations, others.conversations), (2, 1));
    assert!((others.tokens - all.tokens / 2.0).abs() < 1e-9);
    let stranger = book.at(&target(0), Some(3), at(2.0));
    assert_eq!(stranger, all);
}

#[test]
fn no_more_conversations_are_remembered_than_fit() {
    let mut book = Obligations::default();
    for conversation in 0..131_073 {
        book.turn(
            turn(conversation, u128::from(conversation), 0, 1),
            at(conversation as f64 / 1e3),
        );
    }
    assert_eq!(book.len(), 131_072);
    assert_eq!(
        book.at(&target(0), Some(0), at(200.0)).conversations,
        131_072,
        "the first is gone"
    );
}

/// What a reader of the documentation would write.
#[derive(Default)]
struct Naive {
    live: BTreeMap<u64, Lived>,
    /// When conversations that are forgotten began and ended.
    ended: Vec<(f64, f64)>,
    /// All later turns.
    work: Vec<(f64, f64)>,
}

struct Lived {
    rank: u32,
    start: f64,
    last: f64,
    work: Vec<(f64, f64)>,
    expected: f64,
}

fn kept(seconds: f64) -> f64 {
    (-seconds / 120.0).exp()
}

fn faded(work: &[(f64, f64)], now: f64) -> f64 {
    work.iter()
        .map(|(at, tokens)| tokens * kept(now - at))
        .sum()
}

/// Seconds from `start` to `end`, each faded until `now`.
fn span(start: f64, end: f64, now: f64) -> f64 {
    120.0 * (kept(now - end) - kept(now - start))
}

impl Naive {
    fn turn(&mut self, conversation: u64, rank: u32, tokens: f64, now: f64) {
        let begun = self.live.contains_key(&conversation);
        let lived = self.live.entry(conversation).or_insert(Lived {
            rank,
            start: now,
            last: now,
            work: Vec::new(),
            expected: 0.0,
        });
        (lived.rank, lived.last) = (rank, now);
        if begun {
            lived.work.push((now, tokens));
            self.work.push((now, tokens));
        }
        let seconds: f64 = self.live.values().map(|it| span(it.start, now, now)).sum();
        let ended: f64 = self.ended.iter().map(|it| span(it.0, it.1, now)).sum();
        let mean = (faded(&self.work, now) + 100.0) / (seconds + ended + 10.0);
        let lived = self.live.get_mut(&conversation).unwrap();
        let own = span(lived.start, now, now);
        lived.expected = 60.0 * (faded(&lived.work, now) + 10.0 * mean) / (own + 10.0);
    }

    fn expire(&mut self, now: f64) {
        let ended = &mut self.ended;
        self.live.retain(|_, it| {
            let live = now - it.last < 600.0;
            if !live {
                ended.push((it.start, now));
            }
            live
        });
    }

    fn at(&self, rank: u32, but: u64, now: f64) -> (f64, u32) {
        let here = self
            .live
            .iter()
            .filter(|(id, it)| it.rank == rank && **id != but);
        here.fold((0.0, 0), |sum, (_, it)| {
            (sum.0 + it.expected * kept(now - it.last), sum.1 + 1)
        })
    }
}

proptest! {
    #[test]
    fn expectations_equal_those_of_all_turns_and_fade_to_nothing(
        steps in prop::collection::vec((0..6_u64, 0..3_u32, 0..5_000_u64, 0..400_u64, any::<bool>()), 0..80)
    ) {
        let (mut book, mut naive, mut now) = (Obligations::default(), Naive::default(), 1.0);
        for (id, (conversation, rank, tokens, wait, expire)) in (0_u128..).zip(steps) {
            book.turn(turn(conversation, id, rank, tokens), at(now));
            // Said twice, as a router does that follows another's binding: nothing is counted twice.
            book.turn(turn(conversation, id, rank, tokens), at(now));
            naive.turn(conversation, rank, tokens as f64, now);
            now += wait as f64;
            if expire {
                book.expire(at(now));
                naive.expire(now);
            }
            for rank in 0..3 {
                let (tokens, conversations) = naive.at(rank, 2, now);
                let found = book.at(&target(rank), Some(2), at(now));
                let close = (found.tokens - tokens).abs() <= 1e-6 * (1.0 + tokens);
                prop_assert!(close, "{} {tokens}", found.tokens);
                prop_assert_eq!(found.conversations, conversations);
            }
            prop_assert_eq!(book.len(), naive.live.len());
        }
        book.expire(at(now) + Duration::from_secs(600));
        prop_assert!(book.is_empty());
        prop_assert!((0..3).all(|it| book.at(&target(it), None, at(now)).tokens == 0.0));
    }
}
