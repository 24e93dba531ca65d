//! Agents that take a few turns each, all with one system prompt: do turns stay on their rank while the ranks
//! share the requests evenly? The same script as for the routers in the table of the README.

mod figures;
mod script;

use clap::Args;
use engine_sim::Dialect;
use rankway::progress::{Progress, ProgressLine};
use serde::Serialize;
use tokio::time::Instant;

use self::figures::{MAX_OVER_MEAN, Row};
use crate::report::Report;
use crate::world::{Form, Plan, Tables};

const NAME: &str = "agent-script";
/// The engines whose dialect is spoken.
const ENGINES: [Dialect; 2] = [Dialect::Vllm, Dialect::Sglang];
/// How many workers, and ranks of each.
const WORKERS: u32 = 2;
const RANKS: u32 = 2;
/// How many times faster than real time the engines are.
const SPEED_UP: f64 = 4.0;

/// Whether the turns of agents stay on their rank while the ranks share the requests evenly.
#[derive(Args)]
pub(crate) struct Options {
    /// How many seeds are run on each engine, from 1 on.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// How many router replicas take the turns, one after another.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16))]
    routers: u64,
}

/// The summary.
#[derive(Serialize)]
struct Figures {
    seeds: u64,
    /// Seeds of which all that was to hold held, by engine.
    vllm_held: usize,
    sglang_held: usize,
    /// Of all seeds, the worst.
    kept: u32,
    later_turns: u32,
    max_over_mean: f64,
    errors: u32,
}

/// Runs the scenario.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let mut line = ProgressLine::since(Instant::now());
    let runs = ENGINES.map(|engine| (1..=options.seeds).map(move |seed| (engine, seed)));
    let runs: Vec<_> = runs.into_iter().flatten().collect();
    let mut rows = Vec::new();
    for (engine, seed) in &runs {
        rows.push(one(*engine, *seed, options.routers, &form).await?);
        line.show(&Progress {
            what: NAME,
            done: rows.len(),
            total: runs.len(),
            share: rows.len() as f64 / runs.len() as f64,
            details: "",
        });
    }
    drop(line);
    report(options.seeds, rows)
}

/// One seed in a world of its own.
async fn one(engine: Dialect, seed: u64, routers: u64, form: &Form) -> anyhow::Result<Row> {
    let plan = Plan {
        workers: WORKERS,
        engine: engine_sim::Config {
            engine,
            dp_size: RANKS,
            speed_up: SPEED_UP,
            ..engine_sim::Config::default()
        },
        routers: usize::try_from(routers)?,
        router: router_api::Config::default(),
        tables: Tables::Shared,
        seed,
        form: form.clone(),
    };
    let measured = plan.run(async |world| {
        let errors = script::run(world, seed).await?;
        Ok((errors, world.served().await?, world.noticed().await?))
    });
    let (errors, served, noticed) = measured.await?;
    Row::new(engine.name(), seed, &served, RANKS, errors, noticed)
}

fn report(seeds: u64, rows: Vec<Row>) -> anyhow::Result<Report> {
    let held = |engine: Dialect| {
        let of_engine = rows.iter().filter(|it| it.engine == engine.name());
        of_engine.filter(|it| it.holds()).count()
    };
    let figures = Figures {
        seeds,
        vllm_held: held(Dialect::Vllm),
        sglang_held: held(Dialect::Sglang),
        kept: rows.iter().map(|it| it.kept).min().unwrap_or(0),
        later_turns: script::LATER_TURNS,
        max_over_mean: rows.iter().map(|it| it.max_over_mean).fold(0.0, f64::max),
        errors: rows.iter().map(|it| it.errors).sum(),
    };
    let failed = rows.iter().filter(|it| !it.holds()).count();
    let said = match failed {
        0 => format!(
            "in each of {} runs all {} later turns stayed on their rank, and no rank served more than \
             {MAX_OVER_MEAN} times the mean",
            rows.len(),
            figures.later_turns
        ),
        failed => format!(
            "in {failed} of {} runs turns left their rank or the ranks were uneven: at worst {} of {} stayed and \
             one rank served {:.2} times the mean",
            rows.len(),
            figures.kept,
            figures.later_turns,
            figures.max_over_mean
        ),
    };
    Ok(Report::new(NAME, failed == 0 && !rows.is_empty(), said, &figures)?.with_rows(rows)?)
}

#[cfg(test)]
mod tests {
    use super::figures::tests::row;
    use super::report;

    #[test]
    fn one_seed_that_does_not_hold_is_enough() {
        let even = || row(192, [16, 16, 17, 15]);

        assert!(report(2, vec![even(), even()]).unwrap().ok());
        assert!(!report(2, vec![even(), row(191, [16; 4])]).unwrap().ok());
        assert!(!report(1, Vec::new()).unwrap().ok());
    }
}
