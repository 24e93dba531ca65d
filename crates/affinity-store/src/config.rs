//! What can be set.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use affinity::Terms;
use serde::Deserialize;

/// How bindings are kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What binding keys are hashed under, at least 16 bytes and equal on every process of a deployment.
    /// Without one, it is created once in `data_dir`.
    pub secret: Option<Secret>,
    /// Where the file `binding-key` lies.
    pub data_dir: PathBuf,
    /// A router's silence for so many seconds ends what it has in flight.
    pub lease_seconds: u64,
    /// A confirmed binding ends so many seconds after its last stream has.
    pub idle_ttl_seconds: u64,
    /// How many bindings there may be, each in memory: beyond, those end first that have been idle for longest.
    pub capacity: usize,
    /// How many milliseconds a call may take that a request waits for.
    pub decision_deadline_ms: u64,
}

/// A text that is never shown.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("affinity.{key} must be at least 1")]
pub struct InvalidConfig {
    key: &'static str,
}

impl Default for Config {
    fn default() -> Self {
        let terms = Terms::default();
        Self {
            secret: None,
            data_dir: PathBuf::from("rankway-data"),
            lease_seconds: terms.lease.as_secs(),
            idle_ttl_seconds: terms.idle_ttl.as_secs(),
            capacity: 2_000_000,
            decision_deadline_ms: 50,
        }
    }
}

impl Config {
    pub(crate) fn terms(&self) -> Terms {
        Terms {
            lease: Duration::from_secs(self.lease_seconds),
            idle_ttl: Duration::from_secs(self.idle_ttl_seconds),
        }
    }

    pub(crate) fn decision_deadline(&self) -> Duration {
        Duration::from_millis(self.decision_deadline_ms)
    }

    pub(crate) fn check(&self) -> Result<(), InvalidConfig> {
        let capacity = u64::try_from(self.capacity).unwrap_or(u64::MAX);
        let at_least_one = [
            ("lease_seconds", self.lease_seconds),
            ("idle_ttl_seconds", self.idle_ttl_seconds),
            ("capacity", capacity),
            ("decision_deadline_ms", self.decision_deadline_ms),
        ];
        match at_least_one.into_iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(InvalidConfig { key }),
            None => Ok(()),
        }
    }
}

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
