//! How fast a queue drains.

use std::time::Duration;

use domain::Timestamp;

/// Before so many have left nothing is said: the first ones tell how much room there was, not how fast it comes.
const SETTLED: u32 = 8;

/// Tokens that left the queue, and the seconds in which somebody waited, both fading.
#[derive(Debug)]
pub(super) struct Drain {
    /// Over how long they fade.
    memory: Duration,
    tokens: f64,
    seconds: f64,
    left: u32,
    as_of: Timestamp,
}

impl Drain {
    pub(super) fn new(memory: Duration) -> Self {
        Self {
            memory,
            tokens: 0.0,
            seconds: 0.0,
            left: 0,
            as_of: Timestamp::ZERO,
        }
    }

    /// Time has gone by; `waited` says whether somebody has waited since it was last told.
    pub(super) fn proceed(&mut self, waited: bool, now: Timestamp) {
        let seconds = now.since(self.as_of).as_secs_f64();
        self.as_of = self.as_of.max(now);
        if waited && 0.0 < seconds {
            let kept = (-seconds / self.memory.as_secs_f64()).exp();
            self.tokens *= kept;
            self.seconds = self.seconds * kept + seconds;
        }
    }

    /// A request has been let go.
    pub(super) fn let_go(&mut self, tokens: f64) {
        self.tokens += tokens;
        self.left = self.left.saturating_add(1);
    }

    /// Seconds until so many tokens have left; none before enough is known.
    pub(super) fn seconds_for(&self, tokens: f64) -> Option<f64> {
        let known = SETTLED <= self.left && 0.0 < self.seconds;
        known.then(|| tokens * self.seconds / self.tokens)
    }
}
