//! Words and flags of what a router says of its decisions.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::AdminArgs;
use super::values::{decision_id, destination, span, whole};

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// A decision's id (header x-rankway-decision), or `last`
    #[arg(value_name = "ID", value_parser = decision_id)]
    pub(crate) id: String,
    /// Say also why it did not go to this rank: which terms made it dearer, or why it could not
    #[arg(
        long,
        value_name = "WORKER/RANK",
        value_parser = destination,
        env = "RANKWAY_EXPLAIN_WHY_NOT"
    )]
    pub(crate) why_not: Option<String>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct WaterfallArgs {
    /// Only of the requests that ended since then, in whole minutes: 90s, 10m, 1h at most
    #[arg(long, value_name = "TIME", value_parser = span, env = "RANKWAY_WATERFALL_SINCE")]
    pub(crate) since: Option<Duration>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ShadowArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DecisionsArgs {
    #[command(subcommand)]
    pub(crate) command: DecisionsCommand,
}

#[derive(Subcommand)]
pub(crate) enum DecisionsCommand {
    /// Print the decisions that a router remembers as they are recorded, one JSON object a line, the newest first
    #[command(after_help = "\
`rankway replay FILE` makes them again from what is printed with --whole, to the last bit, and then under
other policies.")]
    Export {
        /// All of each, with every candidate, rather than the place and the cheapest candidates
        #[arg(long)]
        whole: bool,
        /// Only those made since then: 90s, 10m, 1h
        #[arg(long, value_name = "TIME", value_parser = span, env = "RANKWAY_DECISIONS_SINCE")]
        since: Option<Duration>,
        /// The most to print
        #[arg(
            long,
            value_name = "N",
            allow_negative_numbers = true,
            value_parser = whole::<usize>(1..=u64::MAX),
            env = "RANKWAY_DECISIONS_LIMIT"
        )]
        limit: Option<usize>,
        #[command(flatten)]
        admin: AdminArgs,
    },
}
