//! A world is exact, loses nothing, and shows what goes wrong in it where it goes wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use accounting::Gap;
use domain::{BlockHash, BlockSize, Tokens};
use engine_model::StepTime;
use fleet_sim::{
    Begins, Content, DrainAt, EventFaults, Fleet, Partition, Random, Report, Restarts, RunError,
    Session, Setting, Workload, WorkloadTurn, run,
};
use placement::Policy;

const BLOCK: u64 = 16;

const SMALL: Fleet = Fleet {
    workers: 2,
    ranks: 2,
    kv_blocks: 4_000,
    pass_tokens: 512,
    max_running: 64,
    step: StepTime {
        base: Duration::from_millis(2),
        per_prefill_token: Duration::from_micros(200),
        per_sequence: Duration::from_micros(50),
    },
};

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A session of turns of these new and answered tokens, each sent a while after the answer to the one before.
fn session(name: u32, begins: Begins, turns: &[(u64, u64, f64)]) -> Session {
    let total: u64 = turns.iter().map(|it| it.0 + it.1).sum();
    let blocks = (0..total / BLOCK).map(|it| BlockHash::new(u64::from(name) << 32 | it));
    let content = Arc::new(Content::new(blocks.collect()));
    let mut isl = 0;
    let turns = turns.iter().map(|(new, osl, gap)| {
        isl += new;
        let turn = WorkloadTurn {
            content: content.clone(),
            isl: Tokens::new(isl),
            osl: Tokens::new(*osl),
            kept: Tokens::new(isl + osl),
            gap: seconds(*gap),
        };
        isl += osl;
        turn
    });
    Session {
        conversation: Some(name),
        parent: None,
        tenant: 0,
        begins,
        turns: turns.collect(),
    }
}

fn workload(sessions: Vec<Session>) -> Workload {
    Workload {
        name: "test".to_owned(),
        block_size: BlockSize::new(BLOCK as u32).unwrap(),
        sessions,
    }
}

/// Conversations of ten turns that come and go, a few seconds apart.
fn agents(count: u32, seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let mut draw = |least: f64, most: f64| least + (most - least) * random.unit();
    let sessions = (0..count).map(|name| {
        let mut turns = vec![(400, 20, 0.0)];
        turns.extend((0..9).map(|_| {
            (
                draw(20.0, 200.0) as u64,
                draw(4.0, 30.0) as u64,
                draw(0.2, 4.0),
            )
        }));
        session(name, Begins::At(seconds(draw(0.0, 30.0))), &turns)
    });
    workload(sessions.collect())
}

fn report(workload: &Workload, setting: &Setting) -> Report {
    run(workload, setting, |_| {}).unwrap()
}

fn setting() -> Setting {
    Setting {
        fleet: SMALL,
        ..Setting::default()
    }
}

/// Everything that can go wrong at once.
fn trouble() -> Setting {
    Setting {
        routers: 4,
        events: EventFaults {
            delay: Duration::from_millis(20),
            loss: 0.05,
            duplicate: 0.05,
            reorder: 0.05,
            reorder_by: Duration::from_millis(300),
            repaired_after: None,
        },
        restarts: Some(Restarts {
            every: seconds(7.0),
            down: seconds(1.0),
            noticed_after: seconds(0.5),
        }),
        drain: Some(DrainAt {
            worker: 1,
            at: seconds(20.0),
            moves: true,
        }),
        join: Some(seconds(10.0)),
        partition: Some(Partition {
            routers: 2,
            every: seconds(9.0),
            lasts: seconds(3.0),
        }),
        ..setting()
    }
}

#[test]
fn the_same_run_gives_the_same_report_bit_for_bit_whatever_goes_wrong() {
    let workload = agents(12, 3);
    for policy in Policy::ALL.iter().copied() {
        let setting = Setting {
            policy,
            ..trouble()
        };
        assert_eq!(report(&workload, &setting), report(&workload, &setting));
    }
    let other = Setting {
        seed: 2,
        ..trouble()
    };
    assert_ne!(report(&workload, &trouble()), report(&workload, &other));
}

#[test]
fn a_lone_request_takes_the_time_of_its_passes() {
    // 1,000 tokens in two passes of 512 and 488, then 4 more tokens of one pass each.
    let workload = workload(vec![session(
        0,
        Begins::At(seconds(1.0)),
        &[(1_000, 5, 0.0)],
    )]);

    let report = report(&workload, &setting());

    let pass = |tokens| SMALL.step.of(tokens, 1);
    let ttft = pass(512) + pass(488);
    assert_eq!(report.ttft, [ttft]);
    assert_eq!(report.took, seconds(1.0) + ttft + 4 * pass(0));
    assert_eq!(report.generated, Tokens::new(5));
    // One rank of two of one worker.
    assert_eq!((report.passes, report.idle_passes), (12, 6));
    assert_eq!(report.pending_skew(), Some(2.0));
    assert_eq!(report.pending_skew_of_all(), Some(4.0));
    let there = ttft + 4 * pass(0);
    let present: Vec<f64> = report.targets.iter().map(|it| it.present).collect();
    let present: f64 = present.iter().sum();
    assert!((present - there.as_secs_f64()).abs() < 1e-9, "{present}");
    assert_eq!(report.queue_skew(), Some(2.0));
    assert_eq!(report.queue_max_over_mean(), Some(4.0));
    // One worker of two computes, and only when the request is there.
    let busy = there.as_secs_f64() / 2.0 / report.took.as_secs_f64();
    assert!((report.busy - busy).abs() < 1e-9, "{}", report.busy);
}

#[test]
fn sessions_begin_after_turns_and_groups_and_steps_are_timed() {
    let first = session(0, Begins::At(Duration::ZERO), &[(64, 1, 0.0), (64, 1, 1.0)]);
    let after = Begins::After {
        session: 0,
        turn: 0,
        pause: seconds(3.0),
    };
    let group = Begins::AfterGroup { first: 0, end: 2 };
    let sessions = vec![
        first,
        session(1, after, &[(64, 1, 0.0)]),
        session(2, group, &[(64, 1, 0.0)]),
        session(3, group, &[(64, 1, 0.0), (64, 1, 2.0)]),
    ];

    let report = report(&workload(sessions), &setting());

    assert_eq!(report.requests, 6);
    // A second turn finds its first 64 tokens in the cache; the answer's one was never computed.
    let pass = SMALL.step.of(64, 1);
    let later = SMALL.step.of(65, 1);
    assert_eq!(report.step, Some(pass + seconds(2.0) + later));
    assert_eq!(
        report.took,
        pass + seconds(3.0) + pass + report.step.unwrap()
    );
}

#[test]
fn sessions_that_wait_for_each_other_are_an_error() {
    let after = |session| Begins::After {
        session,
        turn: 0,
        pause: Duration::ZERO,
    };
    let circle = vec![
        session(0, after(1), &[(64, 1, 0.0)]),
        session(1, after(0), &[(64, 1, 0.0)]),
    ];
    let failed = run(&workload(circle), &trouble(), |_| {});
    assert_eq!(failed, Err(RunError::NeverSent { requests: 2 }));

    let nobody = vec![session(0, after(5), &[(64, 1, 0.0)])];
    let failed = run(&workload(nobody), &setting(), |_| {});
    assert_eq!(failed, Err(RunError::WaitsForNothing { session: 0 }));
}

#[test]
fn what_no_rank_has_room_for_is_an_error_and_its_session_goes_on() {
    let sessions = vec![session(0, Begins::At(Duration::ZERO), &[(70_000, 1, 0.0)])];
    let mut workload = workload(sessions);
    let small = session(1, Begins::At(Duration::ZERO), &[(64, 1, 0.0)]);
    workload.sessions[0].turns.extend(small.turns);

    let report = report(&workload, &setting());

    assert_eq!((report.errors, report.requests), (1, 1));
}

#[test]
fn a_restart_loses_no_request_and_bindings_follow() {
    let workload = agents(60, 1);
    let restarts = Some(Restarts {
        every: seconds(8.0),
        down: seconds(2.0),
        noticed_after: seconds(1.0),
    });

    let calm = report(&workload, &setting());
    let report = report(
        &workload,
        &Setting {
            restarts,
            ..setting()
        },
    );

    assert_eq!(report.errors, 0);
    assert_eq!(report.requests + report.broken, 600);
    assert!(
        report.retries > 0 && report.broken > 0,
        "nothing met a restart"
    );
    assert!(report.bindings.moved > 0);
    // Until it is noticed the index promises what is gone.
    let error = |it: &Report| it.totals.measured.parts.index_error.unwrap();
    assert!(error(&report) > error(&calm).max(0), "{}", error(&report));
}

#[test]
fn while_routers_are_cut_off_no_conversation_is_bound_twice_and_turns_stay() {
    let workload = agents(60, 1);
    let cut = |routers| Setting {
        routers: 4,
        partition: Some(Partition {
            routers,
            every: seconds(6.0),
            lasts: seconds(4.0),
        }),
        ..setting()
    };
    for routers in [2, 4] {
        let report = report(&workload, &cut(routers));

        assert!(report.bindings.unasked > 100, "{:?}", report.bindings);
        assert_eq!((report.requests, report.errors), (600, 0));
        // Each is bound at most once; one that lives within one cut is not.
        assert!(report.bindings.created <= 60, "{:?}", report.bindings);
        let kept = report.kept as f64 / 540.0;
        assert!(
            kept > 0.8,
            "{kept} of the turns stay where {routers} routers are cut off"
        );
    }
}

#[test]
fn what_is_drained_takes_nothing_new_and_who_joins_does() {
    let workload = agents(60, 1);
    let drained = Setting {
        drain: Some(DrainAt {
            worker: 0,
            at: Duration::ZERO,
            moves: true,
        }),
        join: Some(seconds(5.0)),
        ..setting()
    };

    let report = report(&workload, &drained);

    let of = |worker: &str| -> u64 {
        let targets = report.targets.iter();
        let of_worker = targets.filter(|it| it.target.worker.as_str() == worker);
        of_worker.map(|it| it.requests).sum()
    };
    assert_eq!(of("w1"), 0);
    assert!(of("w3") > 100, "{}", of("w3"));
    assert_eq!(of("w2") + of("w3"), 600);
}

/// The share of what was lost that the waterfall puts into a part.
fn share(report: &Report, part: impl Fn(&Gap) -> i64) -> f64 {
    let gap = Gap::of(&report.totals);
    gap.share(part(&gap)).unwrap_or(0.0)
}

#[test]
fn a_small_memory_scattered_turns_and_lost_events_are_told_apart() {
    let workload = agents(60, 1);

    let small = report(
        &workload,
        &Setting {
            fleet: Fleet {
                kv_blocks: 300,
                ..SMALL
            },
            ..setting()
        },
    );
    let memory = share(&small, |it| it.memory);
    assert!(memory > 0.8, "{memory}: {:?}", Gap::of(&small.totals));

    let scattered = report(
        &workload,
        &Setting {
            policy: Policy::TargetRoundRobin,
            ..setting()
        },
    );
    let router = share(&scattered, |it| it.router);
    assert!(router > 0.8, "{router}: {:?}", Gap::of(&scattered.totals));

    // A few losses our routers make up for by what they have sent; an index that is far behind misleads them.
    for (loss, delay) in [(1.0, 0), (0.0, 10)] {
        let deaf = report(
            &workload,
            &Setting {
                affinity: affinity::Mode::Off,
                events: EventFaults {
                    loss,
                    delay: Duration::from_secs(delay),
                    ..EventFaults::default()
                },
                ..setting()
            },
        );
        let index = share(&deaf, |it| it.index);
        assert!(index > 0.8, "{index}: {:?}", Gap::of(&deaf.totals));
    }
}

#[test]
fn what_is_fetched_again_is_not_missed_for_long() {
    let workload = agents(60, 1);
    let lossy = |repaired_after| Setting {
        affinity: affinity::Mode::Off,
        fleet: Fleet {
            kv_blocks: 600,
            ..SMALL
        },
        events: EventFaults {
            delay: Duration::from_millis(5),
            loss: 0.3,
            duplicate: 0.2,
            reorder: 0.2,
            reorder_by: Duration::from_millis(100),
            repaired_after,
        },
        ..setting()
    };
    let missed = |it: &Report| it.totals.measured.parts.unannounced.get();

    let never = missed(&report(&workload, &lossy(None)));
    let soon = missed(&report(&workload, &lossy(Some(seconds(0.5)))));

    assert!(
        10 * soon < never,
        "{soon} tokens, and {never} where nothing is fetched again"
    );
}
