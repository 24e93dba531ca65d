//! `rankway config`: check or show the settings.

use anyhow::Context as _;

use crate::cli::{ConfigArgs, ConfigCommand};
use crate::failure::Failure;
use crate::report::{print_json, print_line};
use crate::settings::Settings;

/// Runs the command.
pub(crate) fn run(args: ConfigArgs) -> Result<(), Failure> {
    match args.command {
        ConfigCommand::Check { args, of } => {
            let settings = Settings::read(&args.service.settings, args.own())?;
            match of.alone() {
                None => settings.starts_up()?,
                Some(kind) => settings.starts_alone(kind)?,
            }
            for doubt in &settings.doubts {
                print_line(&format!("warning: {doubt}"))?;
            }
            print_line("the settings are good")?;
        }
        ConfigCommand::Show { args, json } => {
            let settings = Settings::read(&args.service.settings, args.own())?;
            let settings = settings.without_secrets();
            if json {
                print_json(&settings)?;
            } else {
                let text =
                    toml::to_string_pretty(&settings).context("write the settings as TOML")?;
                print_line(text.trim_end())?;
            }
        }
    }
    Ok(())
}
