//! `rankway sim`: workloads under policies, in simulated time.

mod ablation;
mod compared;
mod page;
mod plan;
mod runs;
mod set;
mod table;
#[cfg(test)]
mod tests;
mod verdict;

use std::fs::{self, OpenOptions};
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use self::ablation::Worth;
use self::compared::Compared;
use self::verdict::Verdict;
use crate::cli::SimArgs;
use crate::failure::Failure;
use crate::report::{print_json, print_line};

/// The last line of `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    verdict: &'a Verdict,
    /// What each term is worth, where they were switched off.
    #[serde(skip_serializing_if = "<[Worth]>::is_empty")]
    ablation: &'a [Worth],
    /// Whether all runs ended, rather than being interrupted.
    complete: bool,
    workloads: &'a [Compared],
}

/// Runs the command. Whether goals are reached is its answer, not its success.
pub(crate) fn run(args: SimArgs) -> Result<(), Failure> {
    let cases = plan::cases(&args)?;
    if let Some(path) = &args.html {
        check_writable(path)?;
    }
    let planned: usize = cases.iter().map(|it| it.runs()).sum();
    let mut compared: Vec<Compared> = Vec::new();
    let mut ran = 0;
    let runtime = crate::runtime()?;
    let ended = runtime.block_on(runs::all(cases, |case, runs| {
        ran += runs.len();
        let one = Compared::new(case, &runs);
        if args.json {
            print_json(&one)?;
        } else {
            print_line(&match args.ablation {
                true => ablation::table(&one),
                false => table::table(&one),
            })?;
        }
        let nothing = one.policies.iter().all(|it| it.figures.requests == 0);
        let name = one.workload.clone();
        compared.push(one);
        match nothing {
            true => Err(Failure::wrong_use(format!(
                "{name}: all requests came before those that are counted: raise --requests"
            ))),
            false => Ok(()),
        }
    }));
    runtime.shutdown_background();
    let complete = match &ended {
        Ok(()) => true,
        Err(Failure::Interrupted) => false,
        Err(_) => return ended,
    };
    let verdict = Verdict::of(&compared, args.all && complete);
    let worth = ablation::worth(&compared);
    if args.json {
        print_json(&Summary {
            verdict: &verdict,
            ablation: &worth,
            complete,
            workloads: &compared,
        })?;
    } else {
        conclude(&args, &verdict, &worth)?;
        if !complete {
            print_line(&format!(
                "interrupted: {ran} of {planned} runs are in the above"
            ))?;
        }
    }
    if let Some(path) = &args.html {
        let page = page::page(&compared, &verdict);
        fs::write(path, page).with_context(|| format!("write {}", path.display()))?;
    }
    ended
}

/// What a first look leads to.
const NEXT: &str = "\
* no other policy has both a lower median TTFT and a higher share of the ceiling (hit);
  work, skew: tokens computed, and requests, at the busiest rank over the mean

Next:
  rankway sim --workload W7 --policy lpwl,minmax,sticky_least,kv   ranks in lock step
  rankway sim --workload W5 --html sim.html                        with a plot
  rankway sim --workload capacity,scattered,lossy                  whose loss is it?
  rankway sim --help                                               all workloads and flags";

fn conclude(args: &SimArgs, verdict: &Verdict, worth: &[Worth]) -> anyhow::Result<()> {
    let lines = match args.ablation {
        true => ablation::conclusion(worth),
        false => verdict.lines(),
    };
    for line in lines {
        print_line(&line)?;
    }
    if args.workload.is_empty() && !args.all && !args.ablation {
        print_line(NEXT)?;
    }
    Ok(())
}

/// Says before minutes of work that their outcome could not be written.
fn check_writable(path: &Path) -> Result<(), Failure> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened
        .map(drop)
        .map_err(|why| Failure::wrong_use(format!("--html {}: {why}", path.display())))
}
