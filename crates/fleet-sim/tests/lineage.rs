//! Agents that send no id are kept on their ranks as well as those that do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockSize, HashSeed, Tokens, block_hashes};
use engine_model::StepTime;
use fleet_sim::{
    AgentX, Begins, Content, Conversation, Fleet, Session, Setting, Workload, WorkloadTurn, run,
    working_set,
};

const BLOCK: u32 = 16;
const WORKERS: u32 = 3;
const RANKS: u32 = 8;
/// How long answers take, after their first token.
const TURN: Duration = Duration::from_secs(5);

/// By what conversations are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Id,
    Lineage,
}

fn session(number: u32, conversation: &Conversation, by: By) -> Session {
    let size = BlockSize::new(BLOCK).unwrap();
    let turns = conversation.turns.iter().map(|turn| {
        let blocks = block_hashes(&turn.prompt, size, HashSeed::of(None, None));
        let isl = Tokens::new(turn.prompt.len() as u64);
        WorkloadTurn {
            content: Arc::new(Content::new(blocks)),
            isl,
            osl: Tokens::new(1),
            kept: isl,
            gap: TURN + turn.gap,
        }
    });
    Session {
        conversation: (by == By::Id).then_some(number),
        parent: None,
        tenant: 0,
        begins: Begins::At(conversation.start),
        turns: turns.collect(),
    }
}

/// The share of prompt tokens that came from a cache.
fn hit_ratio(conversations: &[Conversation], by: By, setting: &Setting) -> f64 {
    let sessions = (0..).zip(conversations);
    let workload = Workload {
        name: "agents".to_owned(),
        block_size: BlockSize::new(BLOCK).unwrap(),
        sessions: sessions
            .map(|(number, it)| session(number, it, by))
            .collect(),
    };
    let setting = Setting {
        lineage: by == By::Lineage,
        ..setting.clone()
    };
    let report = run(&workload, &setting, |_| {}).unwrap();
    assert_eq!(report.errors, 0);
    let sums = report.totals.measured;
    sums.realised.as_f64() / sums.isl.as_f64()
}

#[test]
fn lineage_keeps_nearly_what_ids_keep() {
    let workload = AgentX {
        sessions: 32,
        token_scale: 64.0,
        time_scale: 1.0,
        max_isl: 4_096,
        max_turns: 40,
        seed: 1,
    };
    let conversations = workload.conversations();
    let one_copy = working_set(&conversations) / u64::from(BLOCK * WORKERS * RANKS);
    let one_copy = u32::try_from(one_copy).unwrap();
    for (copies, routers, index, least) in [
        (4, 1, true, 0.98),
        (4, 5, true, 0.98),
        (1, 5, true, 0.98),
        // Ends then lead to where they were computed.
        (4, 1, false, 0.98),
        (4, 5, false, 0.98),
        (1, 5, false, 0.98),
    ] {
        let setting = Setting {
            fleet: Fleet {
                workers: WORKERS,
                ranks: RANKS,
                kv_blocks: copies * one_copy,
                step: StepTime {
                    base: Duration::from_millis(1),
                    per_prefill_token: Duration::from_micros(125),
                    per_sequence: Duration::ZERO,
                },
                ..Fleet::default()
            },
            routers,
            index,
            ..Setting::default()
        };
        let ratio = |by| hit_ratio(&conversations, by, &setting);
        let (with, without) = (ratio(By::Id), ratio(By::Lineage));
        let figures = format!(
            "{copies} copies, {routers} routers, index {index}: {with:.3} with ids, {without:.3} without"
        );
        assert!(least * with <= without, "{figures}");
    }
}
