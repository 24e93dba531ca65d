//! W1: agents as the AgentX traces have them.
//!
//! Source: the AgentX dataset of 2026-06-21 as published by SemiAnalysis (43 turns at the median, 142k, 521k and 849k
//! input tokens at p50, p90 and p99, 444, 1,705 and 7,551 output tokens, growth of 632, 3,735 and 148k, gaps of 2 s,
//! 24 s and 11.4 min; 44 % of the sessions have sub-agents, median 4 of 7 requests; 2.8 % of turns begin the prompt
//! anew) and llm-d's analysis of that of 2026-05-19 (354 and 992 turns at p90 and p99). What is not published, the first
//! prompt, is fitted so that the prompts of all turns come out as published; `tests.rs` holds it against them.

use std::time::Duration;

use domain::BlockSize;

use super::agents::{Agents, Decode, Figures, SubAgents};
use crate::random::Spread;

/// What is published.
pub(super) const AGENTX: Figures = Figures {
    turns: Spread {
        p50: 43.0,
        p90: 354.0,
        p99: 992.0,
    },
    most_turns: 1_500,
    // The prompt and the tools of a coding agent.
    system: 20_480,
    first: Spread {
        p50: 110_000.0,
        p90: 390_000.0,
        p99: 600_000.0,
    },
    growth: Spread {
        p50: 632.0,
        p90: 3_735.0,
        p99: 148_000.0,
    },
    output: Spread {
        p50: 444.0,
        p90: 1_705.0,
        p99: 7_551.0,
    },
    gap: Spread {
        p50: 2.0,
        p90: 24.0,
        p99: 684.0,
    },
    longest_gap: 3_600.0,
    resets: 0.028,
    longest: 1_000_000,
    sub_agents: Some(SubAgents {
        share: 0.44,
        count: Spread {
            p50: 4.0,
            p90: 12.0,
            p99: 20.0,
        },
        turns: Spread {
            p50: 7.0,
            p90: 51.0,
            p99: 200.0,
        },
        first: Spread {
            p50: 26_000.0,
            p90: 50_000.0,
            p99: 85_000.0,
        },
    }),
};

/// Tokens of a block: large, so that a million requests fit into memory.
const BLOCK_TOKENS: u32 = 512;

/// Over what time lanes begin: each has a cold prompt of its first session to compute, which at once would drown the
/// fleet.
pub(super) const RAMP: Duration = Duration::from_secs(900);

/// W1: agents in `lanes` live trees before a fleet of prefill workers. Others are it with changes.
pub(super) fn agentx(lanes: u32, requests: usize) -> Agents {
    Agents {
        name: "W1",
        figures: AGENTX,
        lanes,
        requests,
        ramp: RAMP,
        one_system: false,
        tenants: 1,
        decode: Decode::ELSEWHERE,
        block_size: BlockSize::new(BLOCK_TOKENS).expect("a size that engines have"),
    }
}
