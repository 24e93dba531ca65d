//! Scenarios: promises of the whole system, measured against real services and fake engines over real sockets.

mod agent_script;
mod agents;
mod apart;
mod bindings;
mod cli;
mod client;
mod distributed;
mod everything_dies;
mod lineage;
mod lossy_events;
mod million_bindings;
mod owners;
mod racing_turns;
mod replicas;
mod report;
mod rolling_upgrade;
mod steady;
mod truth;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
