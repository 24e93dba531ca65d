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
    /// How many milliseconds an engine may be silent during a replay before it is asked again.
    pub replay_timeout_ms: u64,
    /// After so many milliseconds of silence an engine is asked whether something was missed: as long as it may
    /// take to find that it restarted without a word.
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
            silence_ms: 5_000,
            startup_ms: 5_000,
        }
    }
}

impl Config {
    pub(crate) fn replay_timeout(&self) -> Duration {
        Duration::from_millis(self.replay_timeout_ms.max(1))
    }

    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(self.silence_ms.max(1))
    }

    pub(crate) fn startup(&self) -> Duration {
        Duration::from_millis(self.startup_ms)
    }
}
