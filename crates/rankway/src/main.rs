//! The `rankway` command: everything in one process, and what people ask of it from a shell.

mod alone;
mod cli;
mod client;
mod config;
mod decisions;
mod demo;
mod explain;
mod failure;
mod fake_engine;
mod index;
mod index_api;
mod moment;
mod operate;
mod replay;
mod report;
mod settings;
mod setup;
mod sim;
mod up;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::runtime::Runtime;

use crate::cli::Cli;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing help fails only when nobody reads it.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::WRONG_USE));
        }
    };
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The runtime that a command serves or asks on.
fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}
