//! The programs that a world apart consists of, and what to do where one is missing.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use tokio::process::Command;

/// What the command line says of worlds apart.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Tools {
    /// The NATS server for `--bus nats`; of several, with spaces between them, the last [default: nats-server]
    #[arg(
        long,
        global = true,
        value_name = "PROGRAM",
        env = "TEST_NATS_SERVERS",
        hide_env = true
    )]
    nats_server: Option<String>,
    /// Keep the logs of processes in this folder; without it they are gone with the scenario.
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(super) logs: Option<PathBuf>,
}

/// Where Debian puts servers, which is not on everybody's path.
const ELSEWHERE: &str = "/usr/sbin/nats-server";

/// The program of a NATS server.
pub(super) async fn nats_server(tools: &Tools) -> anyhow::Result<PathBuf> {
    let given = tools.nats_server.as_deref().unwrap_or_default();
    let programs = match given.split_whitespace().next_back() {
        Some(program) => vec![program],
        None => vec!["nats-server", ELSEWHERE],
    };
    for program in &programs {
        // By its whole path, as it is started without a PATH.
        let found = Command::new("sh")
            .args(["-c", r#"command -v "$0""#, program])
            .output();
        let found = found.await.context("look for a NATS server")?;
        let path = String::from_utf8(found.stdout).context("understand a path")?;
        if found.status.success() {
            return Ok(path.trim().into());
        }
    }
    bail!(
        "there is no {}: install nats-server (Debian, Ubuntu: apt-get install nats-server), or name one by --nats-server",
        programs.join(", nor ")
    )
}

/// The command `rankway`, which lies beside this one.
pub(super) async fn rankway() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let program = own.with_file_name("rankway");
    let told = Command::new(&program).arg("--version").output().await;
    match told {
        Ok(told) => {
            ensure!(
                told.status.success(),
                "{} --version fails",
                program.display()
            );
            Ok(program)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "there is no {}: build it first: cargo build {}-p rankway",
            program.display(),
            release(&own)
        ),
        Err(error) => Err(error).with_context(|| format!("run {}", program.display())),
    }
}

fn release(program: &Path) -> &'static str {
    let folder = program.parent().and_then(Path::file_name);
    match folder.is_some_and(|it| it == "release") {
        true => "--release ",
        false => "",
    }
}
