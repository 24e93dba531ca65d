//! The process that keeps the bindings, from outside.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use super::told::Tell;

/// A keeper. It is killed where this is dropped.
pub(super) struct Child {
    process: tokio::process::Child,
    tells: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// From its start until its store has answered.
    pub(super) ready_seconds: f64,
    /// Memory that it had resident then, in bytes.
    pub(super) resident: u64,
}

impl Child {
    /// Starts one over what lies in `folder`, and waits until its store answers.
    pub(super) async fn start(folder: &Path, capacity: u64) -> anyhow::Result<Self> {
        let began = Instant::now();
        let program = std::env::current_exe().context("find this program")?;
        let mut process = Command::new(program)
            .args([
                "keep-bindings",
                "--capacity",
                &capacity.to_string(),
                "--folder",
            ])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start a process that keeps bindings")?;
        let tells = process.stdin.take().context("it has no input")?;
        let answers = process.stdout.take().context("it has no output")?;
        let mut child = Self {
            process,
            tells,
            answers: BufReader::new(answers).lines(),
            ready_seconds: 0.0,
            resident: 0,
        };
        child.resident = child.answer().await?;
        child.ready_seconds = began.elapsed().as_secs_f64();
        Ok(child)
    }

    /// Tells it something, and waits for the answer.
    pub(super) async fn ask<T: DeserializeOwned>(&mut self, tell: &Tell) -> anyhow::Result<T> {
        self.tell(tell).await?;
        self.answer().await
    }

    /// Lets it bind conversations from `from` on, kills it when it has acknowledged `least`, and answers all that it
    /// has acknowledged.
    pub(super) async fn kill_while_it_binds(
        mut self,
        from: u64,
        least: u64,
    ) -> anyhow::Result<Vec<u64>> {
        self.tell(&Tell::TurnsUntilKilled(from)).await?;
        let mut acknowledged = Vec::new();
        while (acknowledged.len() as u64) < least {
            acknowledged.push(self.answer().await?);
        }
        self.process.start_kill().context("kill it")?;
        while let Some(line) = self
            .answers
            .next_line()
            .await
            .context("read what it said")?
        {
            // So short a line is written into a pipe whole or not at all.
            let number = serde_json::from_str(&line);
            acknowledged.push(number.with_context(|| format!("understand {line:?}"))?);
        }
        self.gone().await?;
        Ok(acknowledged)
    }

    /// Kills it where it stands.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        self.process.start_kill().context("kill it")?;
        self.gone().await
    }

    async fn gone(&mut self) -> anyhow::Result<()> {
        let status = self.process.wait().await.context("wait for its end")?;
        ensure!(!status.success(), "it ended by itself before it was killed");
        Ok(())
    }

    async fn tell(&mut self, tell: &Tell) -> anyhow::Result<()> {
        let line = serde_json::to_string(tell)? + "\n";
        let told = self.tells.write_all(line.as_bytes()).await;
        told.context("tell it what to do")
    }

    async fn answer<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let line = self.answers.next_line().await.context("read its answer")?;
        let line = line.context("it ended by itself")?;
        serde_json::from_str(&line).with_context(|| format!("understand its answer {line:?}"))
    }
}
