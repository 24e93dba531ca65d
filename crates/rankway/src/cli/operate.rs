//! Words and flags of what an operator looks at and changes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use domain::WorkerId;

use super::AdminArgs;
use super::values::{destination, drained, whole};

#[derive(Args)]
pub(crate) struct BindingsArgs {
    #[command(subcommand)]
    pub(crate) command: BindingsCommand,
}

#[derive(Subcommand)]
pub(crate) enum BindingsCommand {
    /// List bindings
    Ls {
        #[command(flatten)]
        filter: FilterArgs,
        /// The most to list
        #[arg(
            long,
            value_name = "N",
            default_value_t = 1000,
            allow_negative_numbers = true,
            value_parser = whole::<usize>(1..=u64::MAX),
            env = "RANKWAY_BINDINGS_LIMIT"
        )]
        limit: usize,
        #[command(flatten)]
        admin: AdminArgs,
        /// Print JSON, one object a binding; the last line is the summary
        #[arg(long)]
        json: bool,
    },
    /// Print all bindings, one JSON object a line
    Export(ExportArgs),
    /// Take bindings as they were exported; conversations that are bound keep what they have
    Import {
        /// The file that was exported to
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        admin: AdminArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

/// Which bindings are meant: those that fit everything said.
#[derive(Args)]
pub(crate) struct FilterArgs {
    /// Only those at this worker
    #[arg(long, value_name = "WORKER", env = "RANKWAY_BINDINGS_WORKER")]
    pub(crate) worker: Option<WorkerId>,
    /// Only those at this rank
    #[arg(
        long,
        value_name = "RANK",
        allow_negative_numbers = true,
        value_parser = whole::<u32>(0..=u32::MAX.into()),
        env = "RANKWAY_BINDINGS_RANK"
    )]
    pub(crate) rank: Option<u32>,
    /// Only those of this tenant
    #[arg(long, value_name = "TENANT", env = "RANKWAY_BINDINGS_TENANT")]
    pub(crate) tenant: Option<String>,
    /// Only those whose conversation's id contains this text
    #[arg(long, value_name = "TEXT", env = "RANKWAY_BINDINGS_CONVERSATION")]
    pub(crate) conversation: Option<String>,
    /// Only those in this state: provisional or confirmed
    #[arg(
        long,
        value_name = "STATE",
        value_parser = ["provisional", "confirmed"],
        hide_possible_values = true,
        env = "RANKWAY_BINDINGS_STATE"
    )]
    pub(crate) state: Option<String>,
}

#[derive(Args)]
pub(crate) struct LookArgs {
    #[command(subcommand)]
    pub(crate) command: LookCommand,
}

#[derive(Subcommand)]
pub(crate) enum LookCommand {
    /// List them
    Ls {
        #[command(flatten)]
        admin: AdminArgs,
        /// Print JSON, one object each; the last line is the summary
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub(crate) struct MoveArgs {
    /// The conversation's id
    #[arg(value_name = "CONVERSATION")]
    pub(crate) conversation: String,
    /// Where to, as WORKER/RANK
    #[arg(
        long,
        value_name = "WORKER/RANK",
        value_parser = destination,
        env = "RANKWAY_MOVE_TO"
    )]
    pub(crate) to: String,
    /// The conversation's tenant, where several have that id
    #[arg(long, value_name = "TENANT", env = "RANKWAY_MOVE_TENANT")]
    pub(crate) tenant: Option<String>,
    /// The conversation's model, where several have that id
    #[arg(long, value_name = "MODEL", env = "RANKWAY_MOVE_MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DrainArgs {
    /// The worker, or WORKER/RANK for one of its ranks
    #[arg(value_name = "WORKER[/RANK]", value_parser = drained)]
    pub(crate) place: (WorkerId, Option<u32>),
    /// Have the conversations there go elsewhere at their next turn; without it they stay until they are idle
    #[arg(long = "move")]
    pub(crate) moves: bool,
    /// End the drain; of a worker also those of its ranks
    #[arg(long, conflicts_with = "moves")]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
