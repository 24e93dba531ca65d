//! Runs cases on all cores. What comes out does not depend on how many there are.

use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context as _;
use fleet_sim::{Report, Setting, Workload};
use placement::Policy;
use rankway::progress::{Progress, ProgressLine};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::Instant;

use super::plan::Case;
use crate::failure::Failure;

/// The most threads: each holds a fleet and perhaps a workload of its own, some hundred megabytes.
const MAX_THREADS: usize = 16;
/// How often the progress is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// What the share of a run that is done is counted in.
const WHOLE: u32 = 10_000;

/// One run.
#[derive(Clone, Copy, Debug)]
struct Job {
    case: usize,
    seed: usize,
    policy: usize,
}

/// What came of one run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) policy: Policy,
    pub(super) seed: u64,
    pub(super) report: Report,
}

struct Jobs {
    cases: Vec<Case>,
    list: Vec<Job>,
    next: AtomicUsize,
    stopped: AtomicBool,
    /// How much of each run is done, of [`WHOLE`].
    done: Vec<AtomicU32>,
    /// The workload of each case and seed, while a run needs it.
    workloads: Vec<Vec<Mutex<Weak<Workload>>>>,
}

/// Runs all cases and calls `finished` with each and its runs, in the cases' order and the runs' by policy and seed. An
/// interrupt ends that: cases that have runs by then are given with those.
pub(super) async fn all(
    cases: Vec<Case>,
    mut finished: impl FnMut(&Case, Vec<Run>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let jobs = Arc::new(Jobs::new(cases));
    let mut results = start(&jobs)?;
    let mut open: Vec<Vec<Run>> = jobs.cases.iter().map(|_| Vec::new()).collect();
    let started = Instant::now();
    let mut line = ProgressLine::since(started);
    let mut interrupt = pin!(tokio::signal::ctrl_c());
    let mut shown = 0;
    while shown < open.len() {
        tokio::select! {
            biased;
            interrupt = &mut interrupt => {
                interrupt.context("listen for SIGINT")?;
                jobs.stopped.store(true, Ordering::Relaxed);
                drop(line);
                for (case, runs) in jobs.cases.iter().zip(open).filter(|it| !it.1.is_empty()) {
                    finished(case, sorted(case, runs))?;
                }
                return Err(Failure::Interrupted);
            }
            result = results.recv() => {
                let (job, run) = result.context("a run ended without a result")?;
                open[jobs.list[job].case].push(run.map_err(Failure::wrong_use)?);
            }
            () = tokio::time::sleep(LOOK) => {}
        }
        jobs.show(&mut line, shown);
        while shown < open.len() && open[shown].len() == jobs.cases[shown].runs() {
            drop(line);
            let case = &jobs.cases[shown];
            finished(case, sorted(case, std::mem::take(&mut open[shown])))?;
            line = ProgressLine::since(started);
            shown += 1;
        }
    }
    Ok(())
}

/// In the order of the case's policies, and of its seeds under each.
fn sorted(case: &Case, mut runs: Vec<Run>) -> Vec<Run> {
    let place = |policy: &Policy| case.policies.iter().position(|it| it == policy);
    runs.sort_by_key(|it| (place(&it.policy), it.seed));
    runs
}

/// Starts the threads, which end when nothing is left to run or the process does.
fn start(jobs: &Arc<Jobs>) -> anyhow::Result<Receiver<(usize, Result<Run, String>)>> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // Room for all, so that nobody waits to say what it found.
    let (sender, results) = channel(jobs.list.len().max(1));
    for _ in 0..cores.min(MAX_THREADS).min(jobs.list.len()) {
        let (jobs, sender) = (Arc::clone(jobs), sender.clone());
        std::thread::Builder::new()
            .name("sim".to_owned())
            .spawn(move || jobs.work(&sender))
            .context("start a thread")?;
    }
    Ok(results)
}

impl Jobs {
    fn new(cases: Vec<Case>) -> Self {
        let mut list = Vec::new();
        for (case, it) in cases.iter().enumerate() {
            for seed in 0..it.seeds.len() {
                let policies = 0..it.policies.len();
                list.extend(policies.map(|policy| Job { case, seed, policy }));
            }
        }
        let empty = |it: &Case| it.seeds.iter().map(|_| Mutex::default()).collect();
        Self {
            next: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            done: list.iter().map(|_| AtomicU32::new(0)).collect(),
            workloads: cases.iter().map(empty).collect(),
            list,
            cases,
        }
    }

    fn work(&self, results: &Sender<(usize, Result<Run, String>)>) {
        // Held on to until another is needed, as the next run mostly has the same.
        let mut held = None;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.list.get(number) else {
                return;
            };
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            let run = self.run(number, job, &mut held);
            let run = run.map_err(|why| format!("{}: {why:#}", self.cases[job.case].name));
            // Nobody listens any more where another run has failed.
            if results.blocking_send((number, run)).is_err() {
                return;
            }
        }
    }

    fn run(
        &self,
        number: usize,
        job: &Job,
        held: &mut Option<Arc<Workload>>,
    ) -> anyhow::Result<Run> {
        let case = &self.cases[job.case];
        let workload = self.workload(job)?;
        *held = Some(Arc::clone(&workload));
        let setting = Setting {
            policy: case.policies[job.policy],
            seed: case.seeds[job.seed],
            ..case.setting.clone()
        };
        let report = fleet_sim::run(&workload, &setting, |progress| {
            let share = progress.done as f64 / progress.total.max(1) as f64;
            // A float to integer cast saturates.
            let share = (share * f64::from(WHOLE)) as u32;
            self.done[number].store(share, Ordering::Relaxed);
        })?;
        self.done[number].store(WHOLE, Ordering::Relaxed);
        Ok(Run {
            policy: setting.policy,
            seed: setting.seed,
            report,
        })
    }

    /// The workload of a run, drawn by whoever needs it first.
    fn workload(&self, job: &Job) -> anyhow::Result<Arc<Workload>> {
        let place = &self.workloads[job.case][job.seed];
        // It is left as it was where drawing failed.
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(drawn) = place.upgrade() {
            return Ok(drawn);
        }
        let case = &self.cases[job.case];
        let drawn = Arc::new(case.workload(case.seeds[job.seed])?);
        *place = Arc::downgrade(&drawn);
        Ok(drawn)
    }

    fn show(&self, line: &mut ProgressLine, case: usize) {
        let done = self.done.iter().map(|it| it.load(Ordering::Relaxed));
        let (mut ended, mut sum) = (0, 0.0);
        for share in done {
            ended += usize::from(share == WHOLE);
            sum += f64::from(share) / f64::from(WHOLE);
        }
        let name = self.cases.get(case).map_or("", |it| it.name.as_str());
        line.show(&Progress {
            what: "runs",
            done: ended,
            total: self.list.len(),
            share: sum / self.list.len().max(1) as f64,
            details: &format!(", now {name}"),
        });
    }
}
