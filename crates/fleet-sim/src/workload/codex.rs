//! W2: agents as the Codex traces have them.
//!
//! Source: `Inferact/codex_swebenchpro_traces` as published by vLLM and Mooncake (610 traces, 33 turns at the median,
//! prompts from 12k to 80k tokens that grow by 2,242 a turn, 131 input tokens for each of output, 94.2 % of the input
//! carried before, gaps of 5.2 s and 81.4 s at p50 and p99).

use super::agents::{Agents, Figures};
use super::agentx::agentx;
use crate::random::Spread;

/// What is published; how far values spread where only one is, is ours.
pub(super) const CODEX: Figures = Figures {
    turns: Spread {
        p50: 33.0,
        p90: 60.0,
        p99: 98.0,
    },
    most_turns: 150,
    system: 8_192,
    first: Spread {
        p50: 12_000.0,
        p90: 15_000.0,
        p99: 18_000.0,
    },
    // Its mean is the published growth.
    growth: Spread {
        p50: 1_360.0,
        p90: 4_900.0,
        p99: 13_900.0,
    },
    // Its mean is the mean prompt over 131.
    output: Spread {
        p50: 250.0,
        p90: 1_000.0,
        p99: 3_100.0,
    },
    gap: Spread {
        p50: 5.2,
        p90: 24.0,
        p99: 81.4,
    },
    longest_gap: 3_600.0,
    resets: 0.0,
    longest: 256_000,
    sub_agents: None,
};

/// W2: `lanes` live sessions before a fleet of prefill workers.
pub(super) fn codex(lanes: u32, requests: usize) -> Agents {
    Agents {
        name: "W2",
        figures: CODEX,
        ..agentx(lanes, requests)
    }
}
