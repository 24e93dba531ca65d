//! The command line of the comparisons.

use std::process::ExitCode;

use benches::child::Order;
use benches::settings::Settings;
use clap::Parser;

/// Rankway's prefix index beside its peers', in one process and on the same streams.
#[derive(Parser)]
#[command(name = "benches", max_term_width = 100)]
enum Command {
    /// Compares the structures.
    Index(Settings),
    /// One measurement in a process of its own.
    #[command(hide = true)]
    Child(Order),
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Index(settings) => {
            let good = benches::index::run(&settings)?;
            Ok(if good {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Command::Child(order) => {
            let answer = order.carry_out()?;
            println!("{} {}", answer.total, answer.of);
            Ok(ExitCode::SUCCESS)
        }
    }
}
