//! How a command fails: one line that says what to do, and an exit code that says whose turn it is.

use std::io::Write as _;
use std::process::ExitCode;

/// The command was used wrongly: flags, settings, arguments.
pub(crate) const WRONG_USE: u8 = 2;
/// The command was right and did not succeed.
const FAILED: u8 = 1;
/// Interrupted before its end: what shells say of a command that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something the user wrote has to change.
    WrongUse(String),
    /// What it depends on did not work.
    Failed(anyhow::Error),
    /// Somebody ended it early.
    Interrupted,
}

impl Failure {
    /// Wrong use, told by an error of its own.
    pub(crate) fn wrong_use(error: impl std::fmt::Display) -> Self {
        Self::WrongUse(error.to_string())
    }

    /// Wrong use, told by an error and its causes.
    pub(crate) fn wrong_use_chain(error: impl Into<anyhow::Error>) -> Self {
        Self::WrongUse(format!("{:#}", error.into()))
    }

    /// Prints one line to standard error.
    pub(crate) fn report(&self) -> ExitCode {
        let (line, code) = match self {
            Self::WrongUse(what) => (what.clone(), WRONG_USE),
            Self::Failed(error) => (format!("{error:#}"), FAILED),
            Self::Interrupted => ("interrupted".to_owned(), INTERRUPTED),
        };
        let line = line.replace('\n', " ");
        // With standard error gone there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "rankway: {line}");
        ExitCode::from(code)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
