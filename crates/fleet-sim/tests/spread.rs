//! Conversations are spread over ranks by what they will ask of them, and stay where they are.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockHash, BlockSize, Tokens};
use engine_model::StepTime;
use fleet_sim::{Begins, Content, Fleet, Report, Session, Setting, Workload, WorkloadTurn, run};

/// Of short conversations; long ones have blocks of four times as many tokens.
const BLOCK: u32 = 16;
const LARGE_BLOCK: u32 = 64;

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
    name: u32,
    (shared, block): (u64, u32),
    begins: Begins,
    turns: &[(u64, u64, Duration)],
) -> Session {
    let total: u64 = turns.iter().map(|it| it.0 + it.1).sum();
    let blocks = (0..shared + total / u64::from(block)).map(|it| match it < shared {
        true => BlockHash::new(it),
        false => BlockHash::new((u64::from(name) + 1) << 32 | it),
    });
    let content = Arc::new(Content::new(blocks.collect()));
    let mut isl = shared * u64::from(block);
    let turns = turns.iter().map(|(new, osl, gap)| {
        isl += new;
        let turn = WorkloadTurn {
            content: content.clone(),
            isl: Tokens::new(isl),
            osl: Tokens::new(*osl),
            kept: Tokens::new(isl + osl),
            gap: *gap,
        };
        isl += osl;
        turn
    });
    Session {
        conversation: Some(name),
        parent: None,
        tenant: 0,
        begins,
        turns: turns.collect(),
    }
}

/// A conversation with a turn of 240 tokens every second or, where it is not busy, every ten.
fn script(name: u32, busy: bool, (start, until): (f64, f64), random: &mut u64) -> Session {
    // A turn takes a fifth of a second itself.
    let mean = if busy { 1.0 } else { 11.8 };
    let mut turns = Vec::new();
    let mut at = start;
    while at < until {
        let gap = -mean * (1.0 - unit(random)).ln();
        at += gap;
        turns.push((240, 16, Duration::from_secs_f64(gap)));
    }
    conversation(name, (0, LARGE_BLOCK), Begins::At(seconds(start)), &turns)
}

/// BC-14: 64 conversations of which 8 have ten times the turns of the others, begun `apart`
/// seconds after each other in an order that is drawn.
fn uneven(apart: f64, until: f64, seed: u64) -> Vec<Session> {
    let mut random = seed;
    let mut order: Vec<(f64, bool)> = (0..64).map(|it| (unit(&mut random), it < 8)).collect();
    order.sort_by(|one, other| one.0.total_cmp(&other.0));
    let scripts = order.into_iter().enumerate();
    scripts
        .map(|(number, (_, busy))| {
            script(
                number as u32,
                busy,
                (apart * number as f64, until),
                &mut random,
            )
        })
        .collect()
}

/// The same 64 at any time: each lives for some minutes, and another of its kind begins when it ends.
fn renewed(life: f64, until: f64, seed: u64) -> Vec<Session> {
    let mut random = seed;
    let mut scripts = Vec::new();
    for number in 0..64 {
        let mut start = 60.0 * unit(&mut random);
        while start < until {
            let end = start + life * (0.5 + unit(&mut random));
            let name = scripts.len() as u32;
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

/// Engines that hold all that is asked of them.
fn fleet(workers: u32, ranks: u32, step: StepTime) -> Fleet {
    Fleet {
        workers,
        ranks,
        kv_blocks: 1 << 18,
        step,
        ..Fleet::default()
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn served(sessions: Vec<Session>, block: u32, setting: &Setting) -> Report {
    let workload = Workload {
        name: "conversations".to_owned(),
        block_size: BlockSize::new(block).unwrap(),
        sessions,
    };
    run(&workload, setting, |_| {}).unwrap()
}

/// Work and pending work of the busiest of 8 ranks over the mean; no binding is moved.
fn skews(routers: u32, sessions: Vec<Session>, measured: (f64, f64), seed: u64) -> (f64, f64) {
    let setting = Setting {
        fleet: fleet(1, 8, SLOW),
        routers,
        warm_up: seconds(measured.0),
        until: Some(seconds(measured.1)),
        seed,
        ..Setting::default()
    };
    let report = served(sessions, LARGE_BLOCK, &setting);
    assert_eq!(report.bindings.moved, 0, "balancing moves nothing");
    let work = report.work_max_over_mean().unwrap();
    (work, report.pending_max_over_mean().unwrap())
}

#[test]
fn where_conversations_come_and_go_no_rank_has_much_more_to_do_than_others() {
    for seed in 1..=10 {
        let routers = [1, 4][usize::try_from(seed % 2).unwrap()];
        let sessions = renewed(120.0, 480.0, seed);
        let (work, pending) = skews(routers, sessions, (240.0, 480.0), seed);
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
        skews(1, uneven(5.0, measured.1, seed), measured, seed).0
    });
    let mean = all.sum::<f64>() / 10.0;
    assert!(mean <= 1.45, "{mean}");
}

/// 64 conversations of 4 turns behind a system prompt that all share, 16 at a time, at 2 workers of 2 ranks.
#[test]
fn conversations_of_equal_turns_are_spread_evenly_and_every_turn_stays() {
    for (seed, routers) in (1..=10).flat_map(|seed| [(seed, 1), (seed, 3)]) {
        let mut random = seed;
        let scripts: Vec<Session> = (0..64_u64)
            .map(|number| {
                let mut draw = |from: u64, below: f64| from + (below * unit(&mut random)) as u64;
                let turns: Vec<(u64, u64, Duration)> = (0..4)
                    .map(|_| (draw(20, 60.0), draw(8, 24.0), Duration::from_millis(1)))
                    .collect();
                // The next begins when one has ended.
                let begins = match number.checked_sub(16) {
                    None => Begins::At(Duration::from_millis(number)),
                    Some(before) => Begins::After {
                        session: before as usize,
                        turn: 3,
                        pause: Duration::ZERO,
                    },
                };
                conversation(number as u32, (9, BLOCK), begins, &turns)
            })
            .collect();
        let setting = Setting {
            fleet: fleet(2, 2, STEP),
            routers,
            seed,
            ..Setting::default()
        };
        let report = served(scripts, BLOCK, &setting);
        assert_eq!((report.requests, report.kept), (256, 192));
        let requests = report.requests_max_over_mean().unwrap();
        assert!(
            requests <= 1.1,
            "{requests} with seed {seed} and {routers} routers"
        );
    }
}
