//! W4: tenants whose users ask the same long prompts again.
//!
//! Source: llm-d, 2025-09-24 (150 tenants, a prefix of 6,000 tokens each, 5 users of a tenant with a question of 1,200
//! tokens, 1,000 tokens of answer, Poisson arrivals that rise from 3 to 60 a second, before 8 pods of 307,328 KV tokens).

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockHash, BlockSize, Tokens};

use super::script;
use super::{Begins, Content, Session, Turn, Workload};
use crate::random::Random;

/// Tenants.
const TENANTS: usize = 150;
/// Users of a tenant.
const USERS: usize = 5;
/// Tokens that the prompts of a tenant have in common.
const PREFIX: u64 = 6_000;
/// Tokens of a question.
const QUESTION: u64 = 1_200;
/// Tokens of an answer.
const ANSWER: u64 = 1_000;
/// Arrivals a second, at the start and at the end.
const RATES: (f64, f64) = (3.0, 60.0);
/// Tokens of a block: a prefix of 6,000 tokens is 46.9 of them.
const BLOCK_TOKENS: u32 = 128;

/// Draws this many requests.
pub(super) fn saas(requests: usize, seed: u64) -> Workload {
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("a size that engines have");
    let mut random = Random::new(seed);
    let prompts = prompts(block_size, &mut random);
    let mut at = 0.0;
    let sessions = (0..requests).map(|number| {
        let risen = number as f64 / requests as f64;
        at += random.exponential(1.0) / (RATES.0 + (RATES.1 - RATES.0) * risen);
        let prompt = &prompts[random.next_u64() as usize % prompts.len()];
        let isl = Tokens::new(PREFIX + QUESTION);
        Session {
            conversation: None,
            parent: None,
            tenant: 0,
            begins: Begins::At(Duration::from_secs_f64(at)),
            turns: vec![Turn {
                content: Arc::clone(prompt),
                isl,
                osl: Tokens::new(ANSWER),
                kept: isl,
                gap: Duration::ZERO,
            }],
        }
    });
    Workload {
        name: "W4".to_owned(),
        sessions: sessions.collect(),
        block_size,
    }
}

fn prompts(block_size: BlockSize, random: &mut Random) -> Vec<Arc<Content>> {
    let mut prompts = Vec::with_capacity(TENANTS * USERS);
    for _ in 0..TENANTS {
        let count = script::blocks_of(PREFIX, block_size);
        let prefix: Vec<BlockHash> = (0..count)
            .map(|_| BlockHash::new(random.next_u64()))
            .collect();
        for _ in 0..USERS {
            prompts.push(script::extend(
                &prefix,
                PREFIX + QUESTION,
                block_size,
                random,
            ));
        }
    }
    prompts
}
