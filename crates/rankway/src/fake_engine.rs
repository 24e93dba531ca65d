//! `rankway fake-engine`: serve as a fake engine.

use std::convert::Infallible;

use engine_sim::{BindError, EngineSim};
use service_kit::{Ended, Process};

use crate::cli::{FakeEngineArgs, check_fleet};
use crate::failure::Failure;
use crate::report::print_line;

/// Runs the command.
pub(crate) fn run(args: FakeEngineArgs) -> Result<(), Failure> {
    check_fleet(args.dp, args.kv_blocks)?;
    service_kit::init_logging("info").map_err(Failure::wrong_use)?;
    let with_events = |port| (!args.no_events).then_some(port);
    let config = engine_sim::Config {
        engine: args.engine,
        engine_version: args.engine_version,
        listen: args.listen,
        model: args.model,
        dp_size: args.dp,
        start_rank: args.start_rank,
        block_size: args.block_size,
        kv_blocks: args.kv_blocks,
        max_model_len: args.max_model_len,
        kv_events_port: with_events(args.kv_events_port),
        replay_port: with_events(args.replay_port),
        prefill_tokens_per_second: f64::from(args.prefill_rate),
        speed_up: args.speed_up,
        seed: args.seed,
        misbehave: args.misbehave.unwrap_or_default(),
        conversations: args.conversation_affinity,
        ..engine_sim::Config::default()
    };
    crate::runtime()?.block_on(serve(config))
}

async fn serve(config: engine_sim::Config) -> Result<(), Failure> {
    let engine = match EngineSim::bind(config).await {
        Ok(engine) => engine,
        Err(BindError::Config(error)) => return Err(Failure::wrong_use_chain(error)),
        Err(error) => return Err(anyhow::Error::new(error).into()),
    };
    print_line(&format!("serving http://{}", engine.http_addr()))?;
    for rank in engine.kv_endpoints() {
        let replay = rank.replay.as_deref().unwrap_or("none");
        print_line(&format!(
            "rank {}: KV events {}, replay {replay}",
            rank.dp_rank, rank.publish
        ))?;
    }
    let process = Process::default();
    process.spawn("fake engine", engine.run(process.shutdown()));
    let never = std::future::pending::<anyhow::Result<Infallible>>();
    match process.run_until(never).await? {
        Ended::Signal => Ok(()),
        Ended::Done(never) => match never {},
    }
}
