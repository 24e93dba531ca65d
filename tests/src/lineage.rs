//! Agents that send no ids: how much of the hit ratio with ids their turns reach, with the index and without.

use std::sync::Arc;

use clap::Args;
use engine_sim::Dialect;
use fleet_sim::{AgentX, Conversation, working_set};
use serde::Serialize;

use crate::agents::{self, Known};
use crate::report::Report;
use crate::world::{Form, Plan, Served, Tables};

const NAME: &str = "lineage";
/// How many workers, and ranks of each: 24 in all.
const WORKERS: u32 = 3;
const RANKS: u32 = 8;
/// Tokens per block.
const BLOCK_SIZE: u32 = 16;
/// Divides the published token counts.
const TOKEN_SCALE: f64 = 32.0;
/// The longest prompt, in tokens.
const MAX_ISL: u32 = 8_192;
/// Total KV capacity over what one copy of every conversation takes.
const KV_OVER_WORKING_SET: f64 = 4.0;
/// How many times faster than real time the engines are.
const SPEED_UP: f64 = 4.0;
/// The share of the hit ratio with ids that turns without reach.
const GOAL: f64 = 0.9;

/// How much of the hit ratio with ids conversations without ids reach, with the index and without.
#[derive(Args)]
pub(crate) struct Options {
    /// How many router replicas take the turns, one after another.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    routers: u64,
    /// How many agents are live at once, each with its sub-agents.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    sessions: u32,
    /// The most turns of a conversation.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(2..=1000))]
    turns: u32,
    /// Divides the published gaps between turns.
    #[arg(long, default_value_t = 100.0)]
    time_scale: f64,
    /// What the conversations are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One run.
#[derive(Debug, Serialize)]
struct Row {
    ids: bool,
    index: bool,
    requests: u64,
    errors: u64,
    prompt_tokens: u64,
    /// As the engines say.
    cached_tokens: u64,
    hit_ratio: f64,
}

/// The summary.
#[derive(Serialize)]
struct Figures {
    seed: u64,
    routers: u64,
    sessions: u32,
    /// Hit ratios without ids over those with ids.
    with_the_index: f64,
    without_the_index: f64,
    errors: u64,
}

/// Runs the scenario.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let workload = AgentX {
        sessions: options.sessions,
        token_scale: TOKEN_SCALE,
        time_scale: options.time_scale,
        max_isl: MAX_ISL,
        max_turns: options.turns,
        seed: options.seed,
    };
    let conversations: Arc<[Conversation]> = workload.conversations().into();
    let mut rows = Vec::new();
    for tables in [Tables::Shared, Tables::SharedUnannounced] {
        for known in [Known::ById, Known::ByLineage] {
            rows.push(one(&options, &form, (tables, known), &conversations).await?);
        }
    }
    report(&options, rows)
}

async fn one(
    options: &Options,
    form: &Form,
    (tables, known): (Tables, Known),
    conversations: &Arc<[Conversation]>,
) -> anyhow::Result<Row> {
    let plan = Plan {
        workers: WORKERS,
        engine: engine_sim::Config {
            engine: Dialect::Vllm,
            dp_size: RANKS,
            block_size: BLOCK_SIZE,
            kv_blocks: kv_blocks(conversations),
            speed_up: SPEED_UP,
            ..engine_sim::Config::default()
        },
        routers: usize::try_from(options.routers)?,
        router: router_api::Config::default(),
        tables,
        seed: options.seed,
        form: form.clone(),
    };
    let index = tables == Tables::Shared;
    let what = match (known, index) {
        (Known::ById, true) => "1/4 with ids",
        (Known::ByLineage, true) => "2/4 without ids",
        (Known::ById, false) => "3/4 with ids, without events",
        (Known::ByLineage, false) => "4/4 without ids or events",
    };
    let measured = plan.run(async |world| {
        let sent = agents::run(world, what, known, conversations).await?;
        let errors = sent.iter().filter(|it| it.ttft.is_none()).count();
        Ok((errors as u64, world.served().await?))
    });
    let (errors, served) = measured.await?;
    Ok(Row::new(known, index, errors, &served))
}

/// Blocks of one rank. It holds at least the longest request.
fn kv_blocks(conversations: &[Conversation]) -> u32 {
    let tokens = working_set(conversations) as f64 * KV_OVER_WORKING_SET;
    let per_rank = tokens / f64::from(WORKERS * RANKS) / f64::from(BLOCK_SIZE);
    // A float to integer cast saturates.
    (per_rank.ceil() as u32).max(2 * MAX_ISL / BLOCK_SIZE)
}

impl Row {
    fn new(known: Known, index: bool, errors: u64, served: &[Vec<Served>]) -> Self {
        let all = || served.iter().flatten();
        let prompt_tokens: u64 = all().map(|it| it.prompt_tokens).sum();
        let cached_tokens: u64 = all().map(|it| it.cached_tokens).sum();
        Self {
            ids: known == Known::ById,
            index,
            requests: all().count() as u64,
            errors,
            prompt_tokens,
            cached_tokens,
            hit_ratio: cached_tokens as f64 / prompt_tokens.max(1) as f64,
        }
    }
}

fn report(options: &Options, rows: Vec<Row>) -> anyhow::Result<Report> {
    let hit = |index: bool, ids: bool| {
        let row = rows.iter().find(|it| (it.index, it.ids) == (index, ids));
        row.map_or(0.0, |it| it.hit_ratio)
    };
    let reached = |index| hit(index, false) / hit(index, true).max(f64::MIN_POSITIVE);
    let figures = Figures {
        seed: options.seed,
        routers: options.routers,
        sessions: options.sessions,
        with_the_index: reached(true),
        without_the_index: reached(false),
        errors: rows.iter().map(|it| it.errors).sum(),
    };
    // Nothing of nothing is not all of it.
    let ok = hit(true, true) > 0.0
        && hit(false, true) > 0.0
        && figures.with_the_index >= GOAL
        && figures.without_the_index >= GOAL
        && figures.errors == 0;
    let said = format!(
        "without ids the turns reached {:.3} of the hit ratio with ids, and {:.3} where no event feeds the index; at \
         least {GOAL} was to be",
        figures.with_the_index, figures.without_the_index
    );
    Ok(Report::new(NAME, ok, said, &figures)?.with_rows(rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ids: bool, index: bool, hit_ratio: f64) -> Row {
        Row {
            ids,
            index,
            requests: 10,
            errors: 0,
            prompt_tokens: 1_000,
            cached_tokens: 900,
            hit_ratio,
        }
    }

    #[test]
    fn it_holds_where_both_reach_the_goal() {
        let options = Options {
            routers: 3,
            sessions: 64,
            turns: 24,
            time_scale: 100.0,
            seed: 1,
        };
        let ok = |with: f64, without: f64| {
            let rows = vec![
                row(true, true, 0.9),
                row(false, true, with),
                row(true, false, 0.8),
                row(false, false, without),
            ];
            report(&options, rows).unwrap().ok()
        };
        assert!(ok(0.82, 0.73));
        assert!(!ok(0.80, 0.73));
        assert!(!ok(0.82, 0.71));
        assert!(!report(&options, Vec::new()).unwrap().ok());
    }
}
