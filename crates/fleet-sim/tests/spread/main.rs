//! Conversations are spread over ranks by what they will ask of them, and stay where they are.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fleet;
mod world;

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockHash, SequenceHash, sequence_hashes};
use engine_model::StepTime;

use crate::fleet::{BLOCK, Fleet, Script, Turn, skew};
use crate::world::run;

/// 8,000 tokens a second.
const STEP: StepTime = StepTime {
    base: Duration::from_millis(5),
    per_prefill_token: Duration::from_micros(125),
    per_sequence: Duration::from_micros(50),
};

/// A draw between 0 and 1 (SplitMix64).
fn unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// 2,000 tokens a second.
const SLOW: StepTime = StepTime {
    per_prefill_token: Duration::from_micros(500),
    ..STEP
};

/// A conversation of turns of these new and answered tokens and gaps, behind `shared` blocks that all have.
fn conversation(
    name: u64,
    shared: u64,
    start: Option<Duration>,
    turns: &[(u64, u64, Duration)],
) -> Script {
    let total: u64 = turns.iter().map(|it| it.0 + it.1).sum();
    let blocks: Vec<BlockHash> = (0..shared + total / u64::from(BLOCK))
        .map(|it| match it < shared {
            true => BlockHash::new(it),
            false => BlockHash::new((name + 1) << 32 | it),
        })
        .collect();
    let chain: Arc<[SequenceHash]> = sequence_hashes(&blocks).into();
    let mut isl = shared * u64::from(BLOCK);
    let turns = turns.iter().map(|(new, osl, gap)| {
        isl += new;
        let turn = Turn {
            chain: chain.clone(),
            isl,
            osl: *osl,
            gap: *gap,
        };
        isl += osl;
        turn
    });
    Script {
        turns: turns.collect(),
        start,
    }
}

/// A conversation with a turn of 240 tokens every second or, where it is not busy, every ten.
fn script(name: u64, busy: bool, (start, until): (f64, f64), random: &mut u64) -> Script {
    // A turn takes a fifth of a second itself.
    let mean = if busy { 1.0 } else { 11.8 };
    let mut turns = Vec::new();
    let mut at = start;
    while at < until {
        let gap = -mean * (1.0 - unit(random)).ln();
        at += gap;
        turns.push((240, 16, Duration::from_secs_f64(gap)));
    }
    conversation(name, 0, Some(Duration::from_secs_f64(start)), &turns)
}

/// BC-14: 64 conversations of which 8 have ten times the turns of the others, begun `apart`
/// seconds after each other in an order that is drawn.
fn uneven(apart: f64, until: f64, seed: u64) -> Vec<Script> {
    let mut random = seed;
    let mut order: Vec<(f64, bool)> = (0..64).map(|it| (unit(&mut random), it < 8)).collect();
    order.sort_by(|one, other| one.0.total_cmp(&other.0));
    let scripts = order.into_iter().enumerate();
    scripts
        .map(|(number, (_, busy))| {
            script(
                number as u64,
                busy,
                (apart * number as f64, until),
                &mut random,
            )
        })
        .collect()
}

/// The same 64 at any time: each lives for some minutes, and another of its kind begins when it ends.
fn renewed(life: f64, until: f64, seed: u64) -> Vec<Script> {
    let mut random = seed;
    let mut scripts = Vec::new();
    for number in 0..64 {
        let mut start = 60.0 * unit(&mut random);
        while start < until {
            let end = start + life * (0.5 + unit(&mut random));
            let name = scripts.len() as u64;
            scripts.push(script(
                name,
                number < 8,
                (start, end.min(until)),
                &mut random,
            ));
            start = end;
        }
    }
    scripts
}

const ONE_OF_8: Fleet = Fleet {
    routers: 1,
    workers: 1,
    ranks: 8,
    step: SLOW,
};

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Work and pending work of the busiest of 8 ranks over the mean; no binding is moved.
fn skews(fleet: Fleet, scripts: &[Script], measured: (f64, f64), seed: u64) -> (f64, f64) {
    let measured = (seconds(measured.0), seconds(measured.1));
    let seen = run(fleet, scripts, measured, seed);
    assert_eq!(seen.moved, 0, "balancing moves nothing");
    (skew(&seen.work, 8.0), skew(&seen.pending, 8.0))
}

#[test]
fn where_conversations_come_and_go_no_rank_has_much_more_to_do_than_others() {
    for seed in 1..=10 {
        let routers = [1, 4][usize::try_from(seed % 2).unwrap()];
        let fleet = Fleet {
            routers,
            ..ONE_OF_8
        };
        let (work, pending) = skews(fleet, &renewed(120.0, 480.0, seed), (240.0, 480.0), seed);
        assert!(work <= 1.3, "work {work} with seed {seed}");
        assert!(pending <= 1.3, "pending {pending} with seed {seed}");
    }
}

/// Nothing tells a busy conversation before its first turn, and it stays where that was: whoever knew the rates of all
/// that are there, and sent each new one to where least is asked, would be at 1.32 in the mean of all orders. Equal
/// numbers of conversations give 1.77.
#[test]
fn where_all_stay_for_ever_the_last_busy_ones_are_met_by_what_is_there() {
    let all = (1..=10).map(|seed| {
        let begun = 5.0 * 64.0;
        let measured = (begun, begun + 60.0);
        skews(ONE_OF_8, &uneven(5.0, measured.1, seed), measured, seed).0
    });
    let mean = all.sum::<f64>() / 10.0;
    assert!(mean <= 1.45, "{mean}");
}

/// 64 conversations of 4 turns behind a system prompt that all share, 16 at a time, at 2 workers of 2 ranks.
#[test]
fn conversations_of_equal_turns_are_spread_evenly_and_every_turn_stays() {
    for (seed, routers) in (1..=10).flat_map(|seed| [(seed, 1), (seed, 3)]) {
        let mut random = seed;
        let scripts: Vec<Script> = (0..64)
            .map(|number| {
                let mut draw = |from: u64, below: f64| from + (below * unit(&mut random)) as u64;
                let turns: Vec<(u64, u64, Duration)> = (0..4)
                    .map(|_| (draw(20, 60.0), draw(8, 24.0), Duration::from_millis(1)))
                    .collect();
                let start = (number < 16).then_some(Duration::from_millis(number));
                conversation(number, 9, start, &turns)
            })
            .collect();
        let fleet = Fleet {
            routers,
            workers: 2,
            ranks: 2,
            step: STEP,
        };
        let seen = run(fleet, &scripts, (Duration::ZERO, seconds(1_000.0)), seed);
        assert_eq!((seen.turns, seen.kept), (256, 192));
        let requests = skew(&seen.requests, 4.0);
        assert!(
            requests <= 1.1,
            "{requests} with seed {seed} and {routers} routers"
        );
    }
}
