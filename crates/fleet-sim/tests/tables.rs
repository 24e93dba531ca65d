//! Routers that each keep a table of conversations of their own scatter them: published with five routers before 24 ranks
//! as 0.58 of what could have come from the caches, and 0.97 where each conversation keeps to one router
//! (srt-slurm#236).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use accounting::Gap;
use domain::{BlockHash, BlockSize, Tokens};
use engine_model::StepTime;
use fleet_sim::{
    Begins, Content, Fleet, Random, Report, Session, Setting, Workload, WorkloadTurn, run,
};
use placement::Policy;

const BLOCK: u32 = 64;
const RANKS: u32 = 8;
const SESSIONS: u32 = 64;
/// Turns of each.
const TURNS: u64 = 16;

/// Conversations that are all there all the time: each begins with a prompt of its own and grows a little with each turn.
/// Their turns come in any order.
fn conversations(seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let sessions = (0..SESSIONS).map(|name| {
        let first = random.log_normal(60.0, 2.0).round().clamp(10.0, 160.0) as u64;
        let blocks = (0..first + TURNS).map(|it| BlockHash::new(u64::from(name) << 32 | it));
        let content = Arc::new(Content::new(blocks.collect()));
        let turns = (0..TURNS).map(|turn| {
            let isl = Tokens::new((first + turn) * u64::from(BLOCK) + 1);
            WorkloadTurn {
                content: content.clone(),
                isl,
                osl: Tokens::new(1),
                kept: isl,
                gap: Duration::from_secs_f64(60.0 * random.unit()),
            }
        });
        Session {
            conversation: Some(name),
            parent: None,
            tenant: 0,
            turns: turns.collect(),
            begins: Begins::At(Duration::from_secs_f64(60.0 * random.unit())),
        }
    });
    Workload {
        name: "conversations".to_owned(),
        block_size: BlockSize::new(BLOCK).unwrap(),
        sessions: sessions.collect(),
    }
}

/// What comes of it where all ranks together hold so many copies of all conversations.
fn served(workload: &Workload, copies: f64, routers: u32, policy: Policy) -> Report {
    let longest = workload.sessions.iter().map(|it| it.turns.last().unwrap());
    let blocks: u64 = longest.map(|it| it.isl.get() / u64::from(BLOCK)).sum();
    let setting = Setting {
        fleet: Fleet {
            workers: 1,
            ranks: RANKS,
            kv_blocks: (copies * blocks as f64 / f64::from(RANKS)) as u32,
            step: StepTime {
                base: Duration::from_millis(1),
                per_prefill_token: Duration::from_micros(20),
                per_sequence: Duration::ZERO,
            },
            ..Fleet::default()
        },
        routers,
        policy,
        ..Setting::default()
    };
    let report = run(workload, &setting, |_| {}).unwrap();
    assert_eq!(report.errors, 0);
    report
}

/// The share of what could have come from the caches that did.
fn realised(report: &Report) -> f64 {
    report.totals.realised_over_ceiling().unwrap()
}

#[test]
fn private_tables_scatter_conversations_and_one_store_does_not() {
    let workload = conversations(1);
    // A conversation that a router has not seen goes to the next rank in turn, and is kept there.
    let keeps: Policy = "trt_conv_adp".parse().unwrap();
    for copies in [2.0, 4.0] {
        let one = realised(&served(&workload, copies, 1, keeps));
        let five = realised(&served(&workload, copies, 5, keeps));
        let ours = realised(&served(&workload, copies, 5, Policy::default()));

        let figures = format!("{copies} copies: one {one:.2}, five {five:.2}, ours {ours:.2}");
        assert!(one > 0.95 && ours > 0.95, "{figures}");
        assert!(five < 0.8 * one, "{figures}");
    }
}

#[test]
fn what_private_tables_lose_is_put_down_to_the_routers() {
    let workload = conversations(1);
    let keeps: Policy = "trt_conv_adp".parse().unwrap();

    let report = served(&workload, 8.0, 5, keeps);

    let gap = Gap::of(&report.totals);
    let router = gap.share(gap.router).unwrap();
    assert!(router > 0.8, "{router}: {gap:?}");
}
