//! The command line: one subcommand for each scenario.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};

use crate::apart::{Shape, Tools};
use crate::report::Report;
use crate::world::{Form, Interrupted};
use crate::{
    agent_script, distributed, everything_dies, lineage, lossy_events, million_bindings, owners,
    racing_turns, replicas, rolling_upgrade,
};

/// What was to hold did not, or could not be measured.
const FAILED: u8 = 1;
/// The command was used wrongly.
const WRONG_USE: u8 = 2;
/// What shells say of a command that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Runs one promise of the whole system against real services and fake engines, and prints its figures.
#[derive(Parser)]
#[command(
    name = "scenarios",
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 what was to hold held, 1 it did not or could not be measured, 2 wrong use."
)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
    /// The bus between the services.
    #[arg(long, value_enum, default_value_t = Bus::Local, global = true)]
    bus: Bus,
    #[command(flatten)]
    tools: Tools,
    /// One JSON object a line, the summary last.
    #[arg(long, global = true)]
    json: bool,
}

/// A bus that scenarios can run over.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Bus {
    /// Embedded, durable, in a temporary folder; all services in this process.
    Local,
    /// A NATS server; each service a process of its own.
    Nats,
}

/// A scenario is a module with its options and `run`.
#[derive(Subcommand)]
enum Scenario {
    AgentScript(agent_script::Options),
    Replicas(replicas::Options),
    RacingTurns(racing_turns::Options),
    MillionBindings(million_bindings::Options),
    Owners(owners::Options),
    Lineage(lineage::Options),
    LossyEvents(lossy_events::Options),
    RollingUpgrade(rolling_upgrade::Options),
    Distributed(distributed::Options),
    EverythingDies(everything_dies::Options),
    #[command(hide = true)]
    KeepBindings(million_bindings::KeeperOptions),
}

impl Scenario {
    /// Why it cannot run over this bus, where it cannot.
    const fn refuses(&self, bus: Bus) -> Option<&'static str> {
        match (self, bus) {
            (Self::MillionBindings(_) | Self::KeepBindings(_), Bus::Nats) => {
                Some("it is about the embedded bus: leave --bus nats out")
            }
            (Self::EverythingDies(_), Bus::Local) => {
                Some("it kills services that are processes of their own: give --bus nats")
            }
            (Self::Distributed(_), Bus::Local) => {
                Some("it sets services that are processes of their own beside one: give --bus nats")
            }
            (Self::RollingUpgrade(_), Bus::Local) => {
                Some("it replaces services that are processes of their own: give --bus nats")
            }
            (_, Bus::Local | Bus::Nats) => None,
        }
    }

    async fn run(self, form: Form) -> anyhow::Result<Report> {
        match self {
            Self::AgentScript(options) => agent_script::run(options, form).await,
            Self::Replicas(options) => replicas::run(options, form).await,
            Self::RacingTurns(options) => racing_turns::run(options, form).await,
            Self::MillionBindings(options) => million_bindings::run(options).await,
            Self::Owners(options) => owners::run(options, form).await,
            Self::Lineage(options) => lineage::run(options, form).await,
            Self::LossyEvents(options) => lossy_events::run(options, form).await,
            Self::RollingUpgrade(options) => rolling_upgrade::run(options, form).await,
            Self::Distributed(options) => distributed::run(options, form).await,
            Self::EverythingDies(options) => everything_dies::run(options, form).await,
            Self::KeepBindings(options) => match million_bindings::keep(options).await? {},
        }
    }
}

/// Runs the command.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing help fails only when nobody reads it.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_USE));
        }
    };
    if let Some(why) = cli.scenario.refuses(cli.bus) {
        // With standard error gone there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "scenarios: {why}");
        return ExitCode::from(WRONG_USE);
    }
    match cli.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(error) => {
            // With standard error gone there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "scenarios: {error:#}");
            ExitCode::from(match error.is::<Interrupted>() {
                true => INTERRUPTED,
                false => FAILED,
            })
        }
    }
}

impl Cli {
    /// Whether what was to hold held.
    fn run(self) -> anyhow::Result<bool> {
        service_kit::init_logging("error")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("start the runtime")?;
        let form = match self.bus {
            Bus::Local => Form::Together,
            Bus::Nats => Form::Apart(Shape::single(self.tools)),
        };
        let report = runtime.block_on(self.scenario.run(form))?;
        let out = std::io::stdout().lock();
        match self.json {
            true => report.write_json(out),
            false => report.write_table(out),
        }
        .context("write the report")?;
        Ok(report.ok())
    }
}
