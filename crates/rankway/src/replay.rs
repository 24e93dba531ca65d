//! `rankway replay`: a trace through policies, in simulated time.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::Context as _;
use domain::BlockSize;
use engine_model::StepTime;
use fleet_sim::{Decode, Fleet, Report, Setting, Trace, Workload};
use rankway::progress::{Progress, ProgressLine};
use service_kit::CancellationToken;
use tokio::time::Instant;

use crate::cli::{ReplayArgs, check_fleet, distinct};
use crate::decisions;
use crate::failure::Failure;
use crate::report::{Comparison, PolicyReport, Quantiles, print_json, print_line};

/// The first 1,000 requests of the Mooncake arXiv trace; see `traces/README.md`.
const SAMPLE: &[u8] = include_bytes!("../traces/mooncake_first_1000.jsonl");
/// What any pass of an engine takes, besides its tokens.
const STEP_BASE: Duration = Duration::from_millis(5);
/// What each sequence adds to a pass.
const STEP_PER_SEQUENCE: Duration = Duration::from_micros(100);

/// Requests one rank runs at a time: vLLM's default.
const MAX_RUNNING: u32 = 256;

/// Runs the command. An interrupt leaves the computation behind, to end with the process.
pub(crate) fn run(args: ReplayArgs) -> Result<(), Failure> {
    if decisions::are_in(&args.trace) {
        return decisions::replay(&args.trace, &distinct(&args.policy), args.json);
    }
    let runtime = crate::runtime()?;
    let ended = runtime.block_on(async {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let replayed = tokio::task::spawn_blocking(move || compare(&args, &stopped));
        tokio::select! {
            biased;
            interrupt = tokio::signal::ctrl_c() => {
                interrupt.context("listen for SIGINT")?;
                stop.cancel();
                Err(Failure::Interrupted)
            }
            ended = replayed => ended.context("join the replay")?,
        }
    });
    runtime.shutdown_background();
    ended
}

fn compare(args: &ReplayArgs, stopped: &CancellationToken) -> Result<(), Failure> {
    let fleet = fleet(args)?;
    let Replayed { workload, ceiling } = read(args)?;
    let mut comparison = Comparison {
        workload: args.trace.display().to_string(),
        policies: Vec::new(),
    };
    let started = Instant::now();
    let policies = distinct(&args.policy);
    for (number, policy) in policies.iter().enumerate() {
        let what = format!("{}/{} {policy}", number + 1, policies.len());
        let mut line = ProgressLine::since(started);
        let setting = Setting {
            fleet,
            policy: *policy,
            seed: args.seed,
            ..Setting::default()
        };
        let replayed = fleet_sim::run(&workload, &setting, |progress| {
            if stopped.is_cancelled() {
                return;
            }
            let done = progress.done as f64 / progress.total.max(1) as f64;
            line.show(&Progress {
                what: &what,
                done: progress.done,
                total: progress.total,
                share: (number as f64 + done) / policies.len() as f64,
                details: &format!(", simulated time {:.0} s", progress.at.as_secs_f64()),
            });
        });
        drop(line);
        let report = policy_report(&replayed.map_err(Failure::wrong_use)?, ceiling);
        if args.json {
            print_json(&report)?;
        }
        comparison.policies.push(report);
    }
    if args.json {
        print_json(&comparison)?;
    } else {
        let requests = workload.requests();
        let ids = ceiling.map(|it| format!("{it:.4} of all block ids and "));
        print_line(&format!(
            "{}: {requests} requests, {}{} of all input tokens were carried before",
            comparison.workload,
            ids.unwrap_or_default(),
            first_ceiling(&comparison),
        ))?;
        print_line(&comparison.table())?;
        let headline = comparison.headline();
        for line in headline
            .as_deref()
            .into_iter()
            .chain(comparison.index_error_note())
        {
            print_line(line)?;
        }
    }
    let errors: u64 = comparison.policies.iter().map(|it| it.errors).sum();
    match errors {
        0 => Ok(()),
        _ => Err(anyhow::anyhow!("{errors} requests fit on no rank: raise --kv-blocks").into()),
    }
}

fn first_ceiling(comparison: &Comparison) -> String {
    let ceiling = comparison
        .policies
        .first()
        .and_then(|it| it.ceiling_over_isl);
    ceiling.map_or("none".to_owned(), |it| format!("{it:.4}"))
}

fn fleet(args: &ReplayArgs) -> Result<Fleet, Failure> {
    if args.policy.is_empty() {
        return Err(Failure::wrong_use("--policy names no policy"));
    }
    check_fleet(args.workers * args.ranks, args.kv_blocks)?;
    Ok(Fleet {
        workers: args.workers,
        ranks: args.ranks,
        kv_blocks: args.kv_blocks,
        pass_tokens: args.pass_tokens,
        max_running: MAX_RUNNING,
        step: StepTime {
            base: STEP_BASE,
            per_prefill_token: Duration::from_secs_f64(1.0 / args.prefill_rate),
            per_sequence: STEP_PER_SEQUENCE,
        },
    })
}

/// A trace as it is replayed.
struct Replayed {
    workload: Workload,
    /// The share of its block ids that came before, where they are the same for all of it.
    ceiling: Option<f64>,
}

fn read(args: &ReplayArgs) -> Result<Replayed, Failure> {
    let block_size = BlockSize::new(args.block_size)
        .map_err(|why| Failure::wrong_use(format!("--block-size: {why}")))?;
    let path = &args.trace;
    let shown = path.display().to_string();
    let mut lines: Box<dyn BufRead> = if path.as_os_str() == "sample" {
        Box::new(SAMPLE)
    } else {
        let file = File::open(path).map_err(|why| {
            Failure::wrong_use(format!("open the trace {shown}: {why} (or write `sample`)"))
        })?;
        Box::new(BufReader::new(file))
    };
    let read =
        match is_of_agents(&mut lines) {
            true => Workload::of_weka(&shown, lines, args.live, args.limit, Decode::Here).map(
                |workload| Replayed {
                    workload,
                    ceiling: None,
                },
            ),
            false => Trace::read(lines, block_size, args.limit).map(|trace| Replayed {
                workload: Workload::of_trace(&shown, &trace, Decode::Here),
                ceiling: Some(trace.ceiling_of_hash_ids()),
            }),
        };
    let read = read.with_context(|| {
        format!("read the trace {shown} (`rankway replay --help` shows the formats)")
    });
    read.map_err(Failure::wrong_use_chain)
}

/// Whether its beginning is that of a tree of agents. What cannot be read is said when it is.
fn is_of_agents(lines: &mut dyn BufRead) -> bool {
    let begins = lines.fill_buf().unwrap_or_default();
    let has = |key: &[u8]| begins.windows(key.len()).any(|it| it == key);
    has(b"\"hash_id_scope\"") || (has(b"\"block_size\"") && !has(b"\"timestamp\""))
}

fn policy_report(report: &Report, ceiling_of_hash_ids: Option<f64>) -> PolicyReport {
    let ttft = Quantiles::of(&report.ttft);
    let work = report.work_max_over_mean();
    let policy_report = PolicyReport::new(report.policy, report.errors, &report.totals, ttft, work);
    PolicyReport {
        ceiling_of_hash_ids,
        ..policy_report
    }
}
