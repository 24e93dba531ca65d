//! W5: conversations about code whose system prompts differ in length by thirty times.
//!
//! Source: llm-d, 2026-08-17, code generation (system prompts of 3k to 100k tokens, 55k in the mean, 2 to 20 turns, 6 in
//! the mean, questions of 1,500 tokens, answers of 800, and at most 60 conversations at a time before one kind of pods
//! of 20,480 prompt tokens a second).

use std::time::Duration;

use domain::BlockSize;

use super::script::{self, Lengths};
use super::{Begins, Session, Workload};
use crate::random::Random;

/// Tokens of the shortest and the longest system prompt.
const SYSTEM: (f64, f64) = (3_000.0, 100_000.0);
/// Raises a uniform draw to this power to have the published mean: 1 / (1 + power) = (55 - 3) / (100 - 3).
const SYSTEM_POWER: f64 = 0.865;
/// Turns of a conversation; geometric above the least, cut at the most.
const TURNS: (u32, u32) = (2, 20);
/// The chance that a conversation goes on after a turn, which gives a mean of 6 turns.
const GOES_ON: f64 = 0.81;
/// Tokens of a question and of an answer.
const QUESTION: u64 = 1_500;
const ANSWER: u64 = 800;
/// From an answer to the next question, in seconds, in the mean: nobody waits in the published run, ours reads a little.
const READS: f64 = 1.0;
/// Over what time the lanes begin.
const RAMP: Duration = Duration::from_secs(60);
/// Tokens of a block.
const BLOCK_TOKENS: u32 = 512;

/// What one of the clients has to do.
#[derive(Clone, Default)]
struct Lane {
    turns: usize,
    last: Option<usize>,
}

/// Draws this many requests of `lanes` conversations at a time.
pub(super) fn code_gen(lanes: u32, requests: usize, seed: u64) -> Workload {
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("a size that engines have");
    let mut random = Random::new(seed);
    let mut work: Vec<Lane> = vec![Lane::default(); lanes as usize];
    let mut sessions: Vec<Session> = Vec::new();
    let mut left = requests;
    while left > 0 {
        // The lane with the least to do, so that all end at about the same time.
        let lane = (0..work.len()).min_by_key(|it| work[*it].turns);
        let lane = lane.expect("a workload has lanes");
        let begins = match work[lane].last {
            None => Begins::At(RAMP.mul_f64(lane as f64 / f64::from(lanes))),
            Some(session) => Begins::After {
                session,
                turn: sessions[session].turns.len() - 1,
                pause: pause(&mut random),
            },
        };
        let mut lengths = conversation(&mut random);
        lengths.truncate(left);
        left -= lengths.len();
        work[lane].last = Some(sessions.len());
        work[lane].turns += lengths.len();
        sessions.push(Session {
            conversation: Some(sessions.len() as u32),
            parent: None,
            tenant: 0,
            begins,
            turns: script::write(&lengths, &[], block_size, &mut random),
        });
    }
    Workload {
        name: "W5".to_owned(),
        block_size,
        sessions,
    }
}

fn conversation(random: &mut Random) -> Vec<Lengths> {
    let mut turns = TURNS.0;
    while turns < TURNS.1 && random.chance(GOES_ON) {
        turns += 1;
    }
    let above = (SYSTEM.1 - SYSTEM.0) * random.unit().powf(SYSTEM_POWER);
    let mut isl = (SYSTEM.0 + above) as u64 + QUESTION;
    let turn = |number| {
        let lengths = Lengths {
            isl,
            osl: ANSWER,
            kept: isl + ANSWER,
            gap: pause(random),
            anew: number == 0,
        };
        isl += ANSWER + QUESTION;
        lengths
    };
    (0..turns).map(turn).collect()
}

fn pause(random: &mut Random) -> Duration {
    Duration::from_secs_f64(random.exponential(READS))
}
