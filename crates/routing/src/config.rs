//! Settings of a router's mind.

use std::time::Duration;

use affinity::{Mode, Modes, Patience};
use domain::ModelName;
use placement::Policy;

/// Settings of one router.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How requests without a binding are placed.
    pub policy: Policy,
    /// How far bindings hold. Baseline policies run as if it were off.
    pub affinity: Modes,
    /// When a turn leaves a bound target that could serve it.
    pub patience: Patience,
    /// Prefill tokens per second of a rank until outcomes have taught better.
    pub prefill_rate: f64,
    /// Time between two tokens of a sequence until outcomes have taught better.
    pub decode_step: Duration,
    /// How long a reservation outlives the expected end of its prefill if nothing ends it.
    pub reservation_lease: Duration,
    /// How long a target is avoided after a failure.
    pub failure_lease: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::KV,
            affinity: Modes::default(),
            patience: Patience::default(),
            prefill_rate: 8_000.0,
            decode_step: Duration::from_millis(10),
            reservation_lease: Duration::from_secs(60),
            failure_lease: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// The affinity mode in force for `model`: baselines follow no conversation.
    pub fn affinity(&self, model: &ModelName) -> Mode {
        match self.policy.is_baseline() {
            true => Mode::Off,
            false => self.affinity.of(model),
        }
    }
}
