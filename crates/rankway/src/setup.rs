//! `rankway setup`: make the streams of a NATS bus.

use service_kit::OpenBus;

use crate::cli::SetupArgs;
use crate::failure::Failure;
use crate::report::print_line;
use crate::settings::{Own, Settings};

/// Runs the command.
pub(crate) fn run(args: &SetupArgs) -> Result<(), Failure> {
    let settings = Settings::read(&args.settings, Own::default())?;
    if settings.bus.is_local() {
        let why = "the bus of `rankway up` needs no setup: name another with --bus-url nats://host:port (bus.url)";
        return Err(Failure::wrong_use(why));
    }
    service_kit::init_logging("warn").map_err(Failure::wrong_use)?;
    crate::runtime()?.block_on(setup(&settings))?;
    print_line("the bus is ready")?;
    Ok(())
}

/// Connecting makes whatever is missing.
async fn setup(settings: &Settings) -> anyhow::Result<()> {
    let folder = settings.data_dir.join("bus");
    let bus = OpenBus::open(&settings.bus, &folder, "setup").await?;
    bus.close().await;
    Ok(())
}
