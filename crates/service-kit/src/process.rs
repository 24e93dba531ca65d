//! The running process: what must be waited for before it may end.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long tasks may take to end once told to, besides what is done for others meanwhile: callers are given notice, stores
/// flushed.
const GRACE: Duration = Duration::from_secs(10);

/// Tasks whose end is the process's business.
pub struct Process {
    tasks: Mutex<JoinSet<anyhow::Result<()>>>,
    shutdown: CancellationToken,
    grace: Duration,
}

impl Default for Process {
    fn default() -> Self {
        Self::draining(Duration::ZERO)
    }
}

impl Process {
    /// One whose streams may go on for `drain` once it is told to end, and ten seconds besides.
    pub fn draining(drain: Duration) -> Self {
        Self {
            tasks: Mutex::default(),
            shutdown: CancellationToken::new(),
            grace: drain + GRACE,
        }
    }

    /// Runs `task` until it ends; its failure ends the process, and so does its success.
    pub fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        // Never held across an await, and a panic elsewhere leaves the set whole.
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn(async move { task.await.with_context(|| format!("run {name}")) });
    }

    /// Cancelled when the process should end.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Waits for `until`, for a task that ends early, or for a signal; then tells all tasks to end and
    /// waits for them, for at most as long as it was made for. A second signal ends the wait.
    pub async fn run_until<T>(
        self,
        until: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Ended<T>> {
        let grace = self.grace;
        let mut tasks = self
            .tasks
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let first = tokio::select! {
            biased;
            signal = interrupted() => signal.map(|()| Ended::Signal),
            Some(ended) = tasks.join_next() => match ended.context("join a task").flatten() {
                Ok(()) => Err(anyhow::anyhow!("a service ended by itself")),
                Err(error) => Err(error),
            },
            outcome = until => outcome.map(Ended::Done),
        };
        self.shutdown.cancel();
        let drained = async {
            while let Some(ended) = tasks.join_next().await {
                if let Err(error) = ended.context("join a task").flatten() {
                    tracing::warn!(error = format!("{error:#}"), "a task failed while ending");
                }
            }
        };
        tokio::select! {
            biased;
            () = drained => {}
            _ = interrupted() => tracing::warn!("interrupted again, ending at once"),
            () = tokio::time::sleep(grace) => {
                tracing::warn!(?grace, "shutdown did not complete in time");
            }
        }
        first
    }
}

/// Why a process stopped waiting.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended<T> {
    /// What it waited for is there.
    Done(T),
    /// A signal asked it to end.
    Signal,
}

/// Resolves on SIGINT or SIGTERM.
async fn interrupted() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt.context("listen for SIGINT"),
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Duration;

    use tokio::time::sleep;

    use super::{Ended, Process};

    #[tokio::test(start_paused = true)]
    async fn what_it_waits_for_ends_it_and_every_task_is_told() {
        let process = Process::default();
        let shutdown = process.shutdown();
        process.spawn("patient", async move {
            shutdown.cancelled().await;
            Ok(())
        });

        let ended = process.run_until(ready(Ok(7))).await.unwrap();

        assert_eq!(ended, Ended::Done(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_task_ends_it_with_the_whole_chain() {
        let process = Process::default();
        process.spawn("fragile", async { Err(anyhow::anyhow!("disk full")) });

        let error = process.run_until(pending::<anyhow::Result<()>>()).await;

        let error = format!("{:#}", error.unwrap_err());
        assert_eq!(error, "run fragile: disk full");
    }

    #[tokio::test(start_paused = true)]
    async fn streams_end_by_themselves_for_as_long_as_they_may() {
        for (takes, finishes) in [(69, true), (71, false)] {
            let process = Process::draining(Duration::from_secs(60));
            let shutdown = process.shutdown();
            let finished = Arc::new(AtomicBool::new(false));
            let told = finished.clone();
            process.spawn("stream", async move {
                shutdown.cancelled().await;
                sleep(Duration::from_secs(takes)).await;
                told.store(true, Relaxed);
                Ok(())
            });

            process.run_until(ready(Ok(()))).await.unwrap();

            assert_eq!(finished.load(Relaxed), finishes);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ignores_the_end_is_left_behind() {
        let process = Process::default();
        process.spawn("stubborn", pending());

        let ended = process.run_until(ready(Ok(()))).await.unwrap();

        assert_eq!(ended, Ended::Done(()));
    }
}
