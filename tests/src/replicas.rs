//! Turns of agents behind several router replicas in turn: how much of what could come from the caches does, with
//! bindings and index shared, and with tables of each replica's own.

mod figures;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use domain::BlockSize;
use engine_sim::Dialect;
use fleet_sim::{AgentX, Conversation};
use serde::Serialize;

use self::figures::{GOAL, PUBLISHED_PRIVATE, Row, working_set};
use crate::agents::{self, Known};
use crate::report::Report;
use crate::world::{Form, Plan, Tables};

const NAME: &str = "replicas";
/// How many workers, and ranks of each: 24 in all.
const WORKERS: u32 = 3;
const RANKS: u32 = 8;
/// Tokens per block.
const BLOCK_SIZE: u32 = 16;
/// Divides the published token counts.
const TOKEN_SCALE: f64 = 16.0;
/// The longest prompt, in tokens.
const MAX_ISL: u32 = 16_384;
/// Total KV capacity over what the conversations that are live at once take in one copy.
const KV_OVER_WORKING_SET: f64 = 4.0;
/// The longest pause between turns, in seconds before scaling: the published 99th percentile.
const LONGEST_PAUSE: f64 = 684.0;
/// Over how long the conversations begin: their first prompts, all at once, are some seconds of every rank's work.
const BEGINNING: Duration = Duration::from_secs(20);
/// Prompt tokens that one rank computes in a second.
const PREFILL_RATE: f64 = 24_000.0;

/// How much of what could come from the caches does, behind replicas that share their tables and that do not.
#[derive(Args)]
pub(crate) struct Options {
    /// How many router replicas take the turns, one after another [default: 5, or 3 processes of their own]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=16))]
    routers: Option<u64>,
    /// How many agents are live at once, each with its sub-agents.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1024))]
    conversations: u32,
    /// Divides the published gaps between turns.
    #[arg(long, default_value_t = 100.0, value_parser = time_scale)]
    time_scale: f64,
    /// The most turns of a conversation.
    #[arg(long, default_value_t = 43, value_parser = clap::value_parser!(u32).range(2..=1000))]
    turns: u32,
    /// What the conversations are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn time_scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok().filter(|it| (1.0..=10_000.0).contains(it));
    scale.ok_or_else(|| "write a number between 1 and 10000".to_owned())
}

/// The summary.
#[derive(Serialize)]
struct Figures {
    seed: u64,
    routers: u64,
    conversations: u32,
    ranks: u32,
    kv_over_working_set: f64,
    shared_over_ceiling: f64,
    /// Not measured where the routers are processes of their own.
    private_over_ceiling: Option<f64>,
    published_private_over_ceiling: f64,
    errors: u64,
}

/// Runs the scenario.
pub(crate) async fn run(options: Options, form: Form) -> anyhow::Result<Report> {
    let conversations = AgentX {
        sessions: options.conversations,
        token_scale: TOKEN_SCALE,
        time_scale: options.time_scale,
        max_isl: MAX_ISL,
        max_turns: options.turns,
        seed: options.seed,
    };
    let mut conversations = conversations.conversations();
    pace(
        &mut conversations,
        Duration::from_secs_f64(LONGEST_PAUSE / options.time_scale),
    );
    let conversations: Arc<[Conversation]> = conversations.into();
    let routers = options.routers.unwrap_or(match form {
        Form::Together => 5,
        Form::Apart(_) => 3,
    });
    let world = Setting {
        options: &options,
        routers,
        form: &form,
    };
    let shared = world.run(Tables::Shared, &conversations).await?;
    let private = match form {
        Form::Together => Some(world.run(Tables::Private, &conversations).await?),
        Form::Apart(_) => None,
    };
    report(&options, routers, shared, private)
}

/// What the runs have in common.
struct Setting<'a> {
    options: &'a Options,
    routers: u64,
    form: &'a Form,
}

impl Setting<'_> {
    /// All conversations through a world of their own.
    async fn run(
        &self,
        tables: Tables,
        conversations: &Arc<[Conversation]>,
    ) -> anyhow::Result<Row> {
        let options = self.options;
        let block_size = BlockSize::new(BLOCK_SIZE)?;
        let plan = Plan {
            workers: WORKERS,
            engine: engine_sim::Config {
                engine: Dialect::Vllm,
                dp_size: RANKS,
                block_size: BLOCK_SIZE,
                kv_blocks: kv_blocks(working_set(options.conversations, conversations)),
                pass_tokens: 2048,
                prefill_tokens_per_second: PREFILL_RATE,
                ..engine_sim::Config::default()
            },
            routers: usize::try_from(self.routers)?,
            router: router_api::Config::default(),
            tables,
            seed: options.seed,
            form: self.form.clone(),
        };
        let what = match tables {
            Tables::Shared | Tables::SharedUnannounced => "1/2 shared tables",
            Tables::Private => "2/2 private tables",
        };
        let measured = plan.run(async |world| {
            let sent = agents::run(world, what, Known::ById, conversations).await?;
            Ok((sent, world.served().await?, world.noticed().await?))
        });
        let (sent, served, noticed) = measured.await?;
        Ok(Row::new(
            tables,
            conversations,
            block_size,
            &sent,
            &served,
            noticed,
        ))
    }
}

/// Lets conversations begin one after another, and cuts pauses that a run would end with waiting for.
fn pace(conversations: &mut [Conversation], longest: Duration) {
    let all = conversations.len().max(1) as f64;
    for (number, conversation) in conversations.iter_mut().enumerate() {
        let begins = BEGINNING.mul_f64(number as f64 / all);
        conversation.start = begins + conversation.start.min(longest);
        for turn in &mut conversation.turns {
            turn.gap = turn.gap.min(longest);
        }
    }
}

/// Blocks of one rank. It holds at least the longest request.
fn kv_blocks(working_set: u64) -> u32 {
    let tokens = working_set as f64 * KV_OVER_WORKING_SET;
    let per_rank = tokens / f64::from(WORKERS * RANKS) / f64::from(BLOCK_SIZE);
    // A float to integer cast saturates.
    (per_rank.ceil() as u32).max(2 * MAX_ISL / BLOCK_SIZE)
}

fn report(
    options: &Options,
    routers: u64,
    shared: Row,
    private: Option<Row>,
) -> anyhow::Result<Report> {
    let over_ceiling = private.as_ref().map(|it| it.over_ceiling);
    let figures = Figures {
        seed: options.seed,
        routers,
        conversations: options.conversations,
        ranks: WORKERS * RANKS,
        kv_over_working_set: KV_OVER_WORKING_SET,
        shared_over_ceiling: shared.over_ceiling,
        private_over_ceiling: over_ceiling,
        published_private_over_ceiling: PUBLISHED_PRIVATE,
        errors: shared.errors + private.as_ref().map_or(0, |it| it.errors),
    };
    let ok = figures.shared_over_ceiling >= GOAL && figures.errors == 0;
    let mut said = format!(
        "with shared bindings the ranks took {:.3} of the ceiling from their caches, {} than {GOAL}",
        figures.shared_over_ceiling,
        if figures.shared_over_ceiling >= GOAL {
            "not less"
        } else {
            "less"
        },
    );
    if let Some(over_ceiling) = over_ceiling {
        // Writing to a text does not fail.
        let _ = write!(
            said,
            "; with tables of each replica's own {over_ceiling:.3} (published: {PUBLISHED_PRIVATE})"
        );
    }
    let rows = [Some(shared), private].into_iter().flatten();
    Ok(Report::new(NAME, ok, said, &figures)?.with_rows(rows)?)
}

#[cfg(test)]
mod tests {
    use super::figures::Row;
    use super::{Options, report};
    use crate::world::Noticed;

    fn row(tables: &'static str, over_ceiling: f64, errors: u64) -> Row {
        Row {
            tables,
            requests: 10,
            errors,
            prompt_tokens: 1_000,
            ceiling_tokens: 900,
            cached_tokens: 890,
            over_ceiling,
            ttft_ms_p50: 1.0,
            ttft_ms_p99: 2.0,
            noticed: Noticed::default(),
        }
    }

    #[test]
    fn it_holds_where_shared_tables_reach_the_goal_without_an_error() {
        let options = Options {
            routers: None,
            conversations: 256,
            time_scale: 100.0,
            turns: 24,
            seed: 1,
        };
        let ok = |shared, private| {
            let report = report(&options, 5, shared, Some(private));
            report.unwrap().ok()
        };

        assert!(ok(row("shared", 0.95, 0), row("private", 0.4, 0)));
        assert!(!ok(row("shared", 0.94, 0), row("private", 0.4, 0)));
        assert!(!ok(row("shared", 0.99, 1), row("private", 0.4, 0)));
        assert!(!ok(row("shared", 0.99, 0), row("private", 0.4, 1)));
    }
}
