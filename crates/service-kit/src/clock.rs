//! The only reader of the wall clock.

use domain::Timestamp;
use tokio::time::Instant;

/// A clock that never goes back: wall time when it was made, plus what has passed since. Under paused
/// tokio time it stands still and advances with it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Timestamp,
    start: Instant,
}

impl Clock {
    /// Reads the wall clock once.
    #[expect(
        clippy::disallowed_types,
        reason = "this is the one place that reads the wall clock"
    )]
    pub fn system() -> Self {
        let since_epoch = std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            base: Timestamp::ZERO + since_epoch,
            start: Instant::now(),
        }
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.base + self.start.elapsed()
    }
}
