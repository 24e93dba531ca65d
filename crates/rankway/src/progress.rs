//! Live progress on standard error: one line, rewritten, where a person is watching.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use terminal_size::{Width, terminal_size_of};
use tokio::time::Instant;

/// How often the line is rewritten.
const PERIOD: Duration = Duration::from_millis(200);
/// How often a line is written where nobody watches, as into a log.
const PLAIN_PERIOD: Duration = Duration::from_secs(10);
/// The seconds left that are too few to count, and the share done that goes with them.
const FEW: f64 = 1.5;
const NEARLY_ALL: f64 = 0.9;
/// The share of a run from which on its end can be estimated.
const ESTIMATED_FROM: f64 = 0.01;

/// A progress line; cleared when dropped.
pub struct ProgressLine {
    terminal: bool,
    started: Instant,
    written: Option<Instant>,
}

/// How far a command is.
pub struct Progress<'a> {
    /// The part of it that runs.
    pub what: &'a str,
    /// How much of that part is done.
    pub done: usize,
    /// All of that part.
    pub total: usize,
    /// The share of the whole command that is done, by which its end is estimated.
    pub share: f64,
    /// What else there is to see, behind a comma.
    pub details: &'a str,
}

impl ProgressLine {
    /// A line of a command that began at `started`.
    pub fn since(started: Instant) -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            started,
            written: None,
        }
    }

    /// Shows the progress, unless it was shown a moment ago.
    pub fn show(&mut self, progress: &Progress<'_>) {
        let period = if self.terminal { PERIOD } else { PLAIN_PERIOD };
        if self.written.is_some_and(|it| it.elapsed() < period) {
            return;
        }
        self.written = Some(Instant::now());
        let line = progress.line(self.started.elapsed().as_secs_f64());
        // With standard error gone nobody is watching.
        let mut out = std::io::stderr().lock();
        let _ = match self.terminal {
            true => write!(out, "\r\x1b[K{}", cut(&line)),
            false => writeln!(out, "{line}"),
        };
        let _ = out.flush();
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.terminal && self.written.is_some() {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

impl Progress<'_> {
    fn line(&self, elapsed: f64) -> String {
        let left = match elapsed / self.share - elapsed {
            _ if self.share < ESTIMATED_FROM => String::new(),
            left if left < FEW && self.share > NEARLY_ALL => ", finishing".to_owned(),
            left => format!(", {:.0} s left", left.max(1.0)),
        };
        let percent = 100.0 * self.done as f64 / self.total.max(1) as f64;
        let Self {
            what,
            done,
            total,
            details,
            ..
        } = self;
        format!("{what}: {done}/{total} ({percent:.0} %){left}{details}")
    }
}

/// As much of the line as fits into the terminal, whose last column stays free for the cursor.
fn cut(line: &str) -> String {
    let width = terminal_size_of(std::io::stderr());
    let width = width.map_or(80, |(Width(columns), _)| usize::from(columns));
    line.chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn the_time_left_is_that_of_the_whole_command() {
        let check = |elapsed, share, says: &str| {
            let progress = Progress {
                what: "1/2 kv",
                done: 3,
                total: 4,
                share,
                details: "",
            };
            assert_eq!(progress.line(elapsed), format!("1/2 kv: 3/4 (75 %){says}"));
        };

        check(30.0, 0.001, "");
        check(30.0, 0.375, ", 50 s left");
        check(30.0, 0.99, ", finishing");
        check(0.1, 0.5, ", 1 s left");
    }
}
