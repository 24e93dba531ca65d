//! The workloads that come with Rankway, by name.

use super::agents::Agents;
use super::agentx::agentx;
use super::code_gen::code_gen;
use super::codex::codex;
use super::grpo::grpo;
use super::saas::saas;
use super::{Decode, Workload, fleets};
use crate::setting::Setting;
use crate::trace::Trace;

/// A workload by its name.
#[derive(Debug)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Where its requests come from.
    pub source: Source,
    /// The fleet that it is meant for, what goes wrong there, and the policy that it shows.
    pub setting: fn() -> Setting,
    /// Whether it is there to compare policies, rather than to show what one comes to.
    pub compares: bool,
}

/// Where a workload's requests come from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A generator.
    Drawn {
        /// How many requests it is meant to have.
        requests: usize,
        /// Draws about this many requests (exactly, but for rollouts, which have whole steps) of this seed.
        draw: fn(usize, u64) -> Workload,
    },
    /// A trace file of this name, in blocks of [`TRACE_BLOCK_TOKENS`].
    File(&'static str),
}

/// Tokens of a block of the trace files.
pub const TRACE_BLOCK_TOKENS: u32 = 512;

/// Live trees of agents in W1 and what is made of it: 16 for each rank; srt-slurm#236 has 256 before 24 ranks.
const TREES: u32 = 128;
/// Live sessions of W2.
const CODEX_SESSIONS: u32 = 192;
/// Conversations at a time of W5: 20 for each pod. The published knee is at 60 for a number of pods that is not known.
const CODE_CONVERSATIONS: u32 = 80;
/// Groups of W7, of 16 streams each: 32 streams for each rank, as of 1,000 before 32 ranks (TensorRT-LLM#16294).
const GROUPS: usize = 32;
/// Tenants of W6 with salts.
const SALTS: u32 = 16;

/// All of them.
pub static CATALOGUE: &[Named] = &[
    Named {
        name: "W1",
        about: "coding agents (AgentX) before prefill workers",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| agentx(TREES, requests).draw(seed),
        },
        setting: fleets::agentx,
        compares: true,
    },
    Named {
        name: "W2",
        about: "coding agents (Codex) before prefill workers",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| codex(CODEX_SESSIONS, requests).draw(seed),
        },
        setting: fleets::codex,
        compares: true,
    },
    Named {
        name: "W3-conversation",
        about: "the Mooncake conversation trace, caches of 30 % on 8 ranks",
        source: Source::File("mooncake_conversation_trace.jsonl"),
        setting: fleets::conversation,
        compares: true,
    },
    Named {
        name: "W3-conversation-32",
        about: "the same on 32 ranks of a quarter the size and speed",
        source: Source::File("mooncake_conversation_trace.jsonl"),
        setting: fleets::conversation_32,
        compares: true,
    },
    Named {
        name: "W3-synthetic",
        about: "the Mooncake synthetic trace, caches of 30 % on 8 ranks",
        source: Source::File("mooncake_synthetic_trace.jsonl"),
        setting: fleets::synthetic,
        compares: true,
    },
    Named {
        name: "W3-agentic",
        about: "a trace of generated coding sessions, caches of 30 % on 8 ranks",
        source: Source::File("agentic_code_generated.jsonl"),
        setting: fleets::agentic,
        compares: true,
    },
    Named {
        name: "W4",
        about: "150 tenants with a long prompt each, arrivals from 3 to 60 a second",
        source: Source::Drawn {
            requests: 10_000,
            draw: saas,
        },
        setting: fleets::saas,
        compares: true,
    },
    Named {
        name: "W5",
        about: "conversations about code, system prompts of 3k to 100k tokens",
        source: Source::Drawn {
            requests: 8_000,
            draw: |requests, seed| code_gen(CODE_CONVERSATIONS, requests, seed),
        },
        setting: fleets::code_gen,
        compares: true,
    },
    Named {
        name: "W6",
        about: "W1 with one system prompt for all",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| scaffold(1, "W6", requests, seed),
        },
        setting: fleets::agentx,
        compares: true,
    },
    Named {
        name: "W6-salted",
        about: "the same for 16 tenants, each with a salt of its own",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| scaffold(SALTS, "W6-salted", requests, seed),
        },
        setting: fleets::agentx,
        compares: true,
    },
    Named {
        name: "W7",
        about: "rollouts: groups of 16 streams with one prompt, in steps",
        source: Source::Drawn {
            requests: 24_000,
            draw: |requests, seed| grpo(GROUPS, requests, seed),
        },
        setting: fleets::grpo,
        compares: true,
    },
    Named {
        name: "W8",
        about: "W1 with restarts, a drain and a new worker",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| agents("W8", requests, seed),
        },
        setting: fleets::churn,
        compares: true,
    },
    Named {
        name: "W9",
        about: "W1 with events lost, late, out of order and doubled",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| agents("W9", requests, seed),
        },
        setting: fleets::lossy,
        compares: true,
    },
    Named {
        name: "W10",
        about: "W1 with routers cut off from the store of bindings",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| agents("W10", requests, seed),
        },
        setting: fleets::partition,
        compares: true,
    },
    Named {
        name: "W1-tight",
        about: "W1 where the caches do not hold all that is asked for again",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| agents("W1-tight", requests, seed),
        },
        setting: fleets::agentx_tight,
        compares: true,
    },
    Named {
        name: "W5-tight",
        about: "W5 where the caches do not hold all that is asked for again",
        source: Source::Drawn {
            requests: 8_000,
            draw: |requests, seed| Workload {
                name: "W5-tight".to_owned(),
                ..code_gen(CODE_CONVERSATIONS, requests, seed)
            },
        },
        setting: fleets::code_gen_tight,
        compares: true,
    },
    Named {
        name: "capacity",
        about: "W2 with caches of two thirds of what its sessions ask for again",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| sessions("capacity", requests, seed),
        },
        setting: fleets::small,
        compares: false,
    },
    Named {
        name: "scattered",
        about: "W2 behind five routers, each with its own table of sessions",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| sessions("scattered", requests, seed),
        },
        setting: fleets::scattered,
        compares: false,
    },
    Named {
        name: "lossy",
        about: "the same caches with four events of five lost, and no bindings",
        source: Source::Drawn {
            requests: 12_000,
            draw: |requests, seed| sessions("lossy", requests, seed),
        },
        setting: fleets::deaf,
        compares: false,
    },
];

/// The workload of this name.
pub fn named(name: &str) -> Option<&'static Named> {
    CATALOGUE.iter().find(|it| it.name == name)
}

impl Named {
    /// Its requests, of a trace that has been read. Traces are of prefill workers: what generates the answers is not
    /// simulated, and takes no room in the caches.
    pub fn of_trace(&self, trace: &Trace) -> Workload {
        Workload::of_trace(self.name, trace, Decode::ELSEWHERE)
    }
}

fn agents(name: &'static str, requests: usize, seed: u64) -> Workload {
    let agents = Agents {
        name,
        ..agentx(TREES, requests)
    };
    agents.draw(seed)
}

fn sessions(name: &'static str, requests: usize, seed: u64) -> Workload {
    let sessions = Agents {
        name,
        ..codex(CODEX_SESSIONS, requests)
    };
    sessions.draw(seed)
}

fn scaffold(tenants: u32, name: &'static str, requests: usize, seed: u64) -> Workload {
    let agents = Agents {
        name,
        one_system: true,
        tenants,
        ..agentx(TREES, requests)
    };
    agents.draw(seed)
}
