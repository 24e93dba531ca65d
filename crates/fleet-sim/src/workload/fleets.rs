//! The fleet that each workload is meant for.
//!
//! How much it has to do, as our policy was measured there. Prefill workers compute, or have a rank that waits for
//! siblings which do, this share of the time: W1 and W6 0.85, W2 0.96, W3-conversation and its 32 pieces 0.73,
//! W3-synthetic 0.84; a bad policy's cannot keep up. In W3-agentic it is 0.18, and all of it in the trace's first two
//! minutes. Workers that decode have passes all the time (W4 and W5 0.98, W7 0.92): what loads W4 is the peak of its
//! arrivals, what loads W5 and W7 is what streams add to every pass.

use std::time::Duration;

use engine_model::StepTime;
use placement::Policy;

use super::agentx::RAMP;
use crate::setting::{DrainAt, EventFaults, Fleet, Partition, Restarts, Setting};

/// What any pass of a prefill worker takes besides its tokens.
const PREFILL_BASE: Duration = Duration::from_millis(5);
/// What any pass takes that decodes: a large model at a small batch.
const DECODE_BASE: Duration = Duration::from_millis(10);
/// What a sequence adds to a pass.
const SEQUENCE: Duration = Duration::from_micros(50);
/// Tokens of a pass of a worker that only computes prompts.
const PREFILL_CHUNK: u32 = 8_192;
/// Tokens of a pass of a worker that decodes too: what others' tokens wait for.
const DECODE_CHUNK: u32 = 2_048;

/// Ranks that compute this many prompt tokens a second.
fn fleet(workers: u32, ranks: u32, kv_blocks: u32, rate: f64) -> Fleet {
    Fleet {
        workers,
        ranks,
        kv_blocks,
        pass_tokens: PREFILL_CHUNK,
        step: StepTime {
            base: PREFILL_BASE,
            per_prefill_token: Duration::from_secs_f64(1.0 / rate),
            per_sequence: SEQUENCE,
        },
        ..Fleet::default()
    }
}

/// The same, of workers that decode too.
fn decoding(fleet: Fleet) -> Fleet {
    Fleet {
        pass_tokens: DECODE_CHUNK,
        step: StepTime {
            base: DECODE_BASE,
            ..fleet.step
        },
        ..fleet
    }
}

fn on(fleet: Fleet) -> Setting {
    Setting {
        fleet,
        ..Setting::default()
    }
}

/// Two prefill workers of four ranks. 128 trees send 3.2 requests a second with 9,000 tokens each that nobody has; all
/// ranks together hold 57 million tokens, one and a half times what live trees can ask for again. A rank computes more
/// than half of the time and waits for its siblings three tenths of it. The first sessions' prompts, cold and all at the
/// start, are not counted.
pub(super) fn agentx() -> Setting {
    Setting {
        warm_up: RAMP,
        ..on(fleet(2, 4, 14_000, 10_000.0))
    }
}

/// The same with 41 million tokens, about what live trees can ask for again. Where caches do not hold a fleet's
/// conversations, a policy that never leaves a binding collapses: who was evicted computes at a rank that has no room.
pub(super) fn agentx_tight() -> Setting {
    tight(agentx(), 10_000)
}

fn tight(usual: Setting, kv_blocks: u32) -> Setting {
    Setting {
        fleet: Fleet {
            kv_blocks,
            ..usual.fleet
        },
        ..usual
    }
}

/// Two prefill workers of four ranks for 192 sessions, which send 9.6 requests a second with 2,900 new tokens each; the
/// caches hold one and a half times their longest prompts.
pub(super) fn codex() -> Setting {
    Setting {
        warm_up: RAMP,
        ..on(fleet(2, 4, 5_600, 4_500.0))
    }
}

/// 16 times 2,200 tokens a second in all, as in the small simulation whose figures are to be reproduced, over eight
/// ranks that hold 30 % of the trace's 182,790 blocks together and share no step.
pub(super) fn conversation() -> Setting {
    on(fleet(8, 1, 6_854, 4_400.0))
}

/// The same size and speed in 32 pieces.
pub(super) fn conversation_32() -> Setting {
    on(fleet(32, 1, 1_714, 1_100.0))
}

/// The same speed, with 30 % of 43,924 blocks.
pub(super) fn synthetic() -> Setting {
    on(fleet(8, 1, 1_647, 4_400.0))
}

/// 30 % of 38,490 blocks. Most of the trace arrives in its first two minutes with 150,000 new tokens a second; the
/// speed is what that loads as the conversations load theirs.
pub(super) fn agentic() -> Setting {
    on(fleet(8, 1, 1_443, 50_000.0))
}

/// The published eight pods of 307,328 KV tokens; their speed is of a 32B model on two accelerators.
pub(super) fn saas() -> Setting {
    on(decoding(fleet(8, 1, 2_401, 16_000.0)))
}

/// Pods of the published 20,480 tokens a second: as many as 80 conversations with affinity keep busy. They hold one and
/// a half times what live conversations can ask for again.
pub(super) fn code_gen() -> Setting {
    on(decoding(fleet(4, 1, 3_900, 20_480.0)))
}

/// The same with a quarter less, for the reason of W1's.
pub(super) fn code_gen_tight() -> Setting {
    tight(code_gen(), 2_900)
}

/// Two workers of eight ranks, 32 streams a rank, which hold little more than what their streams come to.
pub(super) fn grpo() -> Setting {
    on(decoding(fleet(2, 8, 5_200, 8_000.0)))
}

/// A worker restarts every five minutes, one is drained and one joins. Small workers, whose ranks are
/// as fast as W1's and wait for nobody: each restart costs an eighth of what was computed.
pub(super) fn churn() -> Setting {
    let quiet = agentx();
    Setting {
        fleet: fleet(8, 1, quiet.fleet.kv_blocks, 10_000.0),
        restarts: Some(Restarts {
            every: Duration::from_secs(300),
            down: Duration::from_secs(30),
            noticed_after: Duration::from_secs(2),
        }),
        drain: Some(DrainAt {
            worker: 1,
            at: RAMP + Duration::from_secs(600),
            moves: true,
        }),
        join: Some(RAMP + Duration::from_secs(900)),
        ..quiet
    }
}

/// One message in fifty is lost, one in fifty late and one in a hundred comes twice, a fifth of a second after its pass.
pub(super) fn lossy() -> Setting {
    Setting {
        events: EventFaults {
            delay: Duration::from_millis(200),
            loss: 0.02,
            duplicate: 0.01,
            reorder: 0.02,
            reorder_by: Duration::from_secs(1),
            repaired_after: Some(Duration::from_secs(1)),
        },
        ..agentx()
    }
}

/// Four routers, two of which lose the store of bindings for 30 s every five minutes.
pub(super) fn partition() -> Setting {
    Setting {
        routers: 4,
        partition: Some(Partition {
            routers: 2,
            every: Duration::from_secs(300),
            lasts: Duration::from_secs(30),
        }),
        ..agentx()
    }
}

/// Blocks of a rank that are too few for W2.
const SMALL: u32 = 2_500;

/// W2 where all caches together hold two thirds of the live sessions' longest prompts: most of what is lost was evicted.
pub(super) fn small() -> Setting {
    let usual = codex();
    Setting {
        fleet: Fleet {
            kv_blocks: SMALL,
            ..fast(usual.fleet)
        },
        ..usual
    }
}

/// W2 behind five routers whose tables of sessions are their own, as in srt-slurm#236: four turns of five come to a router
/// that would have the session elsewhere.
pub(super) fn scattered() -> Setting {
    let usual = codex();
    Setting {
        fleet: Fleet {
            kv_blocks: 16_000,
            ..fast(usual.fleet)
        },
        routers: 5,
        policy: Policy::StickyLeast,
        ..usual
    }
}

/// The same caches, with four messages of five lost for good, and no binding that leads to what the index does not know
/// of. Lost words of new blocks alone cost little: what else is known of their prompts leads to them.
pub(super) fn deaf() -> Setting {
    let usual = small();
    Setting {
        affinity: affinity::Mode::Off,
        events: EventFaults {
            loss: 0.8,
            ..EventFaults::default()
        },
        ..usual
    }
}

/// Fast enough that nothing waits long where much is computed again.
fn fast(fleet: Fleet) -> Fleet {
    let per_prefill_token = fleet.step.per_prefill_token / 8;
    Fleet {
        step: StepTime {
            per_prefill_token,
            ..fleet.step
        },
        ..fleet
    }
}
