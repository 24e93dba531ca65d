//! A trace replayed: every token is accounted for, and policies differ where they should.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::time::Duration;

use domain::BlockSize;
use engine_model::StepTime;
use fleet_sim::{Decode, Fleet, Report, Setting, Trace, Workload, run};
use placement::Policy;

const FLEET: Fleet = Fleet {
    workers: 2,
    ranks: 2,
    kv_blocks: 400,
    pass_tokens: 64,
    max_running: 256,
    step: StepTime {
        base: Duration::from_millis(1),
        per_prefill_token: Duration::from_micros(100),
        per_sequence: Duration::from_micros(10),
    },
};

/// Nine conversations whose turns each add two blocks to the one before, and share their first block. They come faster than they are served.
fn conversations(turns: u64) -> Trace {
    let mut text = String::new();
    for turn in 0..turns {
        for conversation in 0..9_u64 {
            let own = (0..2 * turn + 4).map(|block| 1_000 * (conversation + 1) + block);
            let ids: Vec<u64> = std::iter::once(0).chain(own).collect();
            let (at, isl) = (turn * 1_000 + conversation, ids.len() * 8 + 3);
            writeln!(
                text,
                r#"{{"timestamp":{at},"input_length":{isl},"output_length":5,"hash_ids":{ids:?}}}"#
            )
            .unwrap();
        }
    }
    Trace::read(text.as_bytes(), BlockSize::new(8).unwrap(), None).unwrap()
}

fn replay(trace: &Trace, policy: Policy) -> Report {
    let workload = Workload::of_trace("conversations", trace, Decode::Here);
    let setting = Setting {
        fleet: FLEET,
        policy,
        ..Setting::default()
    };
    run(&workload, &setting, |_| {}).unwrap()
}

#[test]
fn every_request_is_served_and_every_token_accounted_for() {
    let trace = conversations(10);
    let isl: u64 = trace.requests.iter().map(|it| it.isl.get()).sum();

    for policy in Policy::ALL.iter().copied() {
        let report = replay(&trace, policy);

        assert_eq!((report.requests, report.errors), (90, 0));
        let sums = report.totals.measured;
        assert_eq!((sums.requests, sums.isl.get()), (90, isl));
        let lost = isl - sums.realised.get();
        assert_eq!(sums.parts.sum(), i64::try_from(lost).unwrap());
        let computed: u64 = report.targets.iter().map(|it| it.computed.get()).sum();
        assert_eq!(computed, lost - sums.sub_block.get());
        assert_eq!(report.ttft.len(), 90);
    }
}

#[test]
fn kv_finds_what_turns_in_rotation_miss_and_spreads_the_work() {
    let trace = conversations(20);

    let baseline = replay(&trace, Policy::TargetRoundRobin);
    let kv = replay(&trace, Policy::KV);

    let ratio = |report: &Report| report.totals.realised_over_ceiling().unwrap();
    assert!(ratio(&kv) > 0.95, "{}", ratio(&kv));
    assert!(ratio(&baseline) < 0.8, "{}", ratio(&baseline));
    let spread = kv.work_max_over_mean().unwrap();
    assert!(spread < 2.0, "{spread}: {:?}", kv.targets);
}
