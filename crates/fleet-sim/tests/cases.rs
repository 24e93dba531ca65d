//! What has gone wrong in other routers, in a simulated fleet: hot prefixes, load that is seen late, replicas.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockHash, BlockSize, Tokens};
use fleet_sim::{
    Begins, Content, Fleet, Random, Report, Session, Setting, Workload, WorkloadTurn, run,
};

const BLOCK: u64 = 64;

/// A session of one turn: `shared` tokens that all have, then `own` ones.
fn session(name: u32, at: f64, shared: u64, own: u64, osl: u64) -> Session {
    let block = |place: u64| match place < shared / BLOCK {
        true => BlockHash::new(place),
        false => BlockHash::new((u64::from(name) + 1) << 32 | place),
    };
    let blocks = (0..(shared + own + osl) / BLOCK).map(block).collect();
    Session {
        conversation: Some(name),
        parent: None,
        tenant: 0,
        begins: Begins::At(Duration::from_secs_f64(at)),
        turns: vec![WorkloadTurn {
            content: Arc::new(Content::new(blocks)),
            isl: Tokens::new(shared + own),
            osl: Tokens::new(osl),
            kept: Tokens::new(shared + own + osl),
            gap: Duration::ZERO,
        }],
    }
}

fn report(sessions: Vec<Session>, setting: &Setting, served: u64) -> Report {
    let workload = Workload {
        name: "case".to_owned(),
        block_size: BlockSize::new(BLOCK as u32).unwrap(),
        sessions,
    };
    let report = run(&workload, setting, |_| {}).unwrap();
    assert_eq!(report.requests, served);
    report
}

/// Eight targets of 8,000 tokens a second.
fn eight() -> Setting {
    Setting {
        fleet: Fleet {
            workers: 8,
            ranks: 1,
            kv_blocks: 20_000,
            ..Fleet::default()
        },
        ..Setting::default()
    }
}

/// BC-18: 800 requests with the 20,000 tokens that one has left at one of eight targets, and tails of their own, as many
/// as the eight can do and one cannot.
#[test]
fn a_prompt_that_all_begin_with_does_not_draw_all_to_one_target() {
    for (tail, every) in [(1_024, 0.018), (2_048, 0.035), (2_048, 0.04), (2_048, 0.06)] {
        let (requests, _) = hot_prefix(tail, every);
        let case = format!("tails of {tail} every {every} s");
        assert!(requests <= 1.3, "{requests} with {case}");
    }
}

/// What comes all at once, or with tails of a fortieth of what is shared, goes to fewer: in demand, computing the prefix
/// again is dear by what it delays. That is too much where the queue at its holder outlasts it.
#[test]
fn a_burst_on_a_prompt_of_one_target_is_spread_over_more() {
    for (tail, every) in [(512, 0.009), (2_048, 0.0)] {
        let (requests, work) = hot_prefix(tail, every);
        assert!(requests <= 2.8 && work <= 2.2, "{requests} {work}");
    }
}

/// Requests and work, each max over mean.
fn hot_prefix(tail: u64, every: f64) -> (f64, f64) {
    let mut sessions = vec![session(0, 0.0, 19_968, 512, 1)];
    let later = |it| session(it, 60.0 + f64::from(it) * every, 19_968, tail, 1);
    sessions.extend((1..=800).map(later));
    let setting = Setting {
        warm_up: Duration::from_secs(30),
        ..eight()
    };
    let report = report(sessions, &setting, 800);
    let requests = report.requests_max_over_mean().unwrap();
    (requests, report.work_max_over_mean().unwrap())
}

/// BC-22: 200 prompts of 32,000 tokens at once, of which no answer shows anything for seconds.
#[test]
fn prompts_that_show_in_no_answer_yet_are_spread_evenly() {
    let sessions = (0..200).map(|it| session(it, 0.0, 0, 32_000, 1)).collect();
    let setting = Setting {
        gauges_every: Duration::from_secs(60),
        ..eight()
    };
    let report = report(sessions, &setting, 200);
    let requests: Vec<u64> = report.targets.iter().map(|it| it.requests).collect();
    assert!(
        requests.iter().all(|it| (24..=26).contains(it)),
        "{requests:?}"
    );
}

/// The mean time to first token of bursts of 100 new conversations, each within four seconds, of which a few are long.
fn bursts(routers: u32, tell_every: Option<Duration>, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let mut sessions = Vec::new();
    for burst in 0..6_u32 {
        for number in 0..100 {
            let at = f64::from(burst) * 30.0 + 4.0 * random.unit();
            let isl = if random.unit() < 0.08 { 30_016 } else { 1_024 };
            sessions.push(session(burst * 100 + number, at, 0, isl, 32));
        }
    }
    let setting = Setting {
        routers,
        tell_every,
        gauges_every: Duration::from_secs(5),
        seed,
        ..Setting::default()
    };
    report(sessions, &setting, 600).ttft_mean().unwrap()
}

/// BC-28: gauges come every five seconds, so replicas know of each other's load by what they tell alone.
#[test]
fn four_replicas_that_see_gauges_late_place_bursts_as_well_as_one() {
    let (mut one, mut four) = (0.0, 0.0);
    for seed in 1..=6 {
        let alone = bursts(1, None, seed);
        let silent = bursts(4, Some(Duration::from_secs(5)), seed);
        assert!(1.5 * alone < silent, "{silent}: who tells nothing herds");
        one += alone;
        four += bursts(4, None, seed);
    }
    assert!(four <= 1.15 * one, "{four} against {one} over all seeds");
}
