//! The command line of the comparisons.

use std::process::ExitCode;

use benches::child::Order;
use benches::decide;
use benches::recovery;
use benches::served::Service;
use benches::settings::Settings;
use clap::Parser;

/// Rankway's prefix index beside its peers', in one process and on the same streams.
#[derive(Parser)]
#[command(name = "benches", max_term_width = 100)]
enum Command {
    /// Compares the structures.
    Index(Settings),
    /// Kills a full indexer and starts it again.
    Recovery(recovery::Settings),
    /// Times a router's decisions on one core.
    Decide(decide::Settings),
    /// An indexer in a process of its own.
    #[command(hide = true)]
    Service(Service),
    /// One measurement in a process of its own.
    #[command(hide = true)]
    Child(Order),
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Index(settings) => benches::index::run(&settings).map(verdict),
        Command::Recovery(settings) => recovery::run(&settings).map(verdict),
        Command::Decide(settings) => decide::run(&settings).map(verdict),
        Command::Service(service) => service.run().map(|()| ExitCode::SUCCESS),
        Command::Child(order) => {
            let answer = order.carry_out()?;
            println!("{} {}", answer.total, answer.of);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn verdict(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
