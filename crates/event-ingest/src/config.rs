//! What can be set.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

/// How events are read.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the folder `positions` lies, which keeps how far each rank was published.
    pub data_dir: PathBuf,
    /// What session tags are hashed under, equal on every process of a deployment. Without one, sessions
    /// are left out of the log.
    pub session_secret: Option<String>,
    /// How many milliseconds an engine may be silent during a replay before it is asked again, at most: at first it is half a
    /// second, and twice as many with each attempt.
    pub replay_timeout_ms: u64,
    /// After so many milliseconds of silence a rank is asked whether something was missed: nothing else shows that its
    /// last message before a pause was lost. It costs a rank that pauses all the time two small replays a second.
    pub quiet_ms: u64,
    /// It is asked again after pauses that double up to so many milliseconds: as long as it may take to find that an idle
    /// engine restarted without a word.
    pub silence_ms: u64,
    /// How many milliseconds the first attempts to reach the ranks may hold up readiness.
    pub startup_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("rankway-data"),
            session_secret: None,
            replay_timeout_ms: 5_000,
            quiet_ms: 500,
            silence_ms: 5_000,
            startup_ms: 5_000,
        }
    }
}

impl Config {
    pub(crate) fn replay_timeout(&self) -> Duration {
        Duration::from_millis(self.replay_timeout_ms.max(1))
    }

    pub(crate) fn quiet(&self) -> Duration {
        Duration::from_millis(self.quiet_ms.max(1))
    }

    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(self.silence_ms.max(1))
    }

    pub(crate) fn startup(&self) -> Duration {
        Duration::from_millis(self.startup_ms)
    }
}
