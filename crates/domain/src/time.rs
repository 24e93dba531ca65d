//! Points in time, always passed in: nothing below the services reads a clock.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// Microseconds since the Unix epoch, or since the start of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// Wraps a count of microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// From seconds as engines send them. Negative, infinite and not-a-number become the origin.
    pub fn from_secs_f64(seconds: f64) -> Self {
        // A float to integer cast saturates and takes not-a-number to zero.
        Self((seconds * 1e6).round() as u64)
    }

    /// Microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Seconds since the origin.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// How long after `earlier` this is; nothing when it is not after.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }
}

impl AddAssign<Duration> for Timestamp {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(micros))
    }
}
