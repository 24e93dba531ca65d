//! W7: rollouts of reinforcement learning, in steps that all streams of the step before have to end for.
//!
//! Source: the shape is that of tpu-inference#3307 and miles#2012 (groups of streams that share a prompt, before engines
//! of four data-parallel ranks); the lengths are ours.

use std::time::Duration;

use domain::{BlockHash, BlockSize};

use super::script::{self, Lengths};
use super::{Begins, Session, Turn, Workload};
use crate::random::{Random, Spread};

/// Streams of a group, which have their first prompt in common.
const STREAMS: usize = 16;
/// Turns of a stream.
const TURNS: usize = 24;
/// Tokens of a group's prompt.
const PROMPT: Spread = Spread {
    p50: 6_000.0,
    p90: 12_000.0,
    p99: 20_000.0,
};
/// Tokens that a tool's answer adds.
const TOOL: Spread = Spread {
    p50: 400.0,
    p90: 2_500.0,
    p99: 8_000.0,
};
/// Tokens of an answer.
const OUTPUT: Spread = Spread {
    p50: 200.0,
    p90: 700.0,
    p99: 2_000.0,
};
/// What a tool takes, in seconds.
const GAP: Spread = Spread {
    p50: 1.0,
    p90: 6.0,
    p99: 30.0,
};
/// Tokens of a block.
const BLOCK_TOKENS: u32 = 256;

/// Draws as many steps of `groups` groups as have at least this many requests.
pub(super) fn grpo(groups: usize, requests: usize, seed: u64) -> Workload {
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("a size that engines have");
    let mut random = Random::new(seed);
    let streams = groups * STREAMS;
    let steps = requests.div_ceil(streams * TURNS).max(1);
    let mut sessions = Vec::with_capacity(steps * streams);
    for step in 0..steps {
        let begins = match step.checked_sub(1) {
            None => Begins::At(Duration::ZERO),
            Some(before) => Begins::AfterGroup {
                first: before * streams,
                end: step * streams,
            },
        };
        for _ in 0..groups {
            let tokens = PROMPT.draw(&mut random) as u64;
            let prompt = script::extend(&[], tokens, block_size, &mut random);
            for _ in 0..STREAMS {
                sessions.push(Session {
                    conversation: Some(sessions.len() as u32),
                    parent: None,
                    tenant: 0,
                    begins,
                    turns: stream(tokens, prompt.blocks(), block_size, &mut random),
                });
            }
        }
    }
    Workload {
        name: "W7".to_owned(),
        block_size,
        sessions,
    }
}

fn stream(
    prompt: u64,
    opening: &[BlockHash],
    block_size: BlockSize,
    random: &mut Random,
) -> Vec<Turn> {
    let mut isl = prompt;
    let turn = |number| {
        let osl = (OUTPUT.draw(random) as u64).max(1);
        let lengths = Lengths {
            isl,
            osl,
            kept: isl + osl,
            gap: Duration::from_secs_f64(GAP.draw(random)),
            anew: number == 0,
        };
        isl += osl + TOOL.draw(random) as u64;
        lengths
    };
    let lengths: Vec<Lengths> = (0..TURNS).map(turn).collect();
    script::write(&lengths, opening, block_size, random)
}
