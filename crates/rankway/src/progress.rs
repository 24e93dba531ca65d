//! Live progress on standard error: one line, rewritten, where a person is watching.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use tokio::time::Instant;

/// How often the line is rewritten.
const PERIOD: Duration = Duration::from_millis(200);
/// How often a line is written where nobody watches, as into a log.
const PLAIN_PERIOD: Duration = Duration::from_secs(10);

/// A progress line.
pub(crate) struct ProgressLine {
    terminal: bool,
    started: Instant,
    written: Option<Instant>,
}

impl ProgressLine {
    pub(crate) fn start() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            started: Instant::now(),
            written: None,
        }
    }

    /// Shows `what`, how much of it is done and when it will be, unless it was shown a moment ago.
    pub(crate) fn show(&mut self, what: &str, done: usize, total: usize, details: &str) {
        let period = if self.terminal { PERIOD } else { PLAIN_PERIOD };
        if done < total && self.written.is_some_and(|it| it.elapsed() < period) {
            return;
        }
        if done >= total && !self.terminal {
            return;
        }
        self.written = Some(Instant::now());
        let share = done as f64 / total.max(1) as f64;
        let elapsed = self.started.elapsed().as_secs_f64();
        let left = match share {
            share if share > 0.01 => format!(", {:.0} s left", elapsed / share - elapsed),
            _ => String::new(),
        };
        let line = format!(
            "{what}: {done}/{total} ({:.0} %){left}{details}",
            100.0 * share
        );
        // With standard error gone nobody is watching.
        let mut out = std::io::stderr().lock();
        let _ = match self.terminal {
            true => write!(out, "\r\x1b[K{line}"),
            false => writeln!(out, "{line}"),
        };
        let _ = out.flush();
    }

    /// Leaves the terminal on a fresh line.
    pub(crate) fn end(self) {
        if self.terminal && self.written.is_some() {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}
