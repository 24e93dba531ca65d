//! A program that runs beside the scenario, from outside: its life, its log, its share of the processor.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long a program that is told to end may take: a router waits for its streams.
const END: Duration = Duration::from_secs(30);
/// What Linux counts processor time in, whatever its kernel is built with.
const TICKS_PER_SECOND: f64 = 100.0;
/// The last lines of a log that are shown where something failed.
const SHOWN: usize = 12;

/// A program, and its process while it runs. The process ends with the scenario, however that ends.
pub(crate) struct Daemon {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
    running: Option<Child>,
}

impl Daemon {
    /// One that does not run yet; what it says is appended to `log`.
    pub(super) fn new(
        name: String,
        program: &Path,
        arguments: Vec<OsString>,
        log: PathBuf,
    ) -> Self {
        Self {
            name,
            program: program.to_owned(),
            arguments,
            log,
            running: None,
        }
    }

    /// Such as `router-1`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts it, as often as it has ended, always with the same arguments.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        ensure!(self.running.is_none(), "{} runs already", self.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("open the log of {}", self.name))?;
        // The system itself kills it when this process dies. In a group of its own Ctrl-C does not reach it.
        let started = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.program)
            .args(&self.arguments)
            // Settings come from the arguments alone.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share a log")?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let started = started.with_context(|| {
            format!(
                "start {} by setpriv, which is a part of util-linux",
                self.name
            )
        })?;
        self.running = Some(started);
        Ok(())
    }

    /// Whether it runs, frozen or not.
    pub(crate) fn runs(&mut self) -> anyhow::Result<bool> {
        let Some(child) = &mut self.running else {
            return Ok(false);
        };
        let ended = child.try_wait();
        Ok(ended.context("look after a process")?.is_none())
    }

    /// `kill -9`, of a frozen one too; it is gone afterwards.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        let Some(mut child) = self.running.take() else {
            return Ok(());
        };
        let killed = child.kill().await;
        killed.with_context(|| format!("kill {}", self.name))
    }

    /// SIGTERM; how it ended.
    pub(crate) async fn end(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal("TERM").await?;
        let child = self.running.take();
        let mut child = child.with_context(|| format!("{} does not run", self.name))?;
        let ended = timeout(END, child.wait()).await;
        let ended = ended.with_context(|| format!("{} does not end", self.name))?;
        ended.with_context(|| format!("wait for the end of {}", self.name))
    }

    /// SIGSTOP: it does nothing until [`Self::resume`], and its connections stay.
    pub(crate) async fn freeze(&self) -> anyhow::Result<()> {
        self.signal("STOP").await
    }

    /// SIGCONT.
    pub(crate) async fn resume(&self) -> anyhow::Result<()> {
        self.signal("CONT").await
    }

    async fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let id = self.id()?.to_string();
        let sent = Command::new("kill").args(["-s", signal, &id]).status();
        let sent = sent.await.context("run kill")?;
        ensure!(sent.success(), "{} cannot be sent {signal}", self.name);
        Ok(())
    }

    fn id(&self) -> anyhow::Result<u32> {
        let id = self.running.as_ref().and_then(Child::id);
        id.with_context(|| format!("{} does not run", self.name))
    }

    /// Processor time of all its threads since it was started last, in seconds.
    pub(crate) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/stat", self.id()?);
        let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let ticks = ticks(&stat).with_context(|| format!("understand {path}"))?;
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }

    /// The last lines that it said, under its name.
    pub(super) fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(SHOWN)..];
        format!("--- {}\n{}\n", self.name, last.join("\n"))
    }
}

/// The time in the kernel and out of it, of a line of `/proc/ID/stat`.
fn ticks(stat: &str) -> Option<u64> {
    // The name of a program, in brackets, may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::ticks;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 1199 0 3 0 250 31 4 5 20 0 9 0 100\n";

        assert_eq!(ticks(stat), Some(281));
        assert_eq!(ticks("7 (a) S 1"), None);
    }
}
