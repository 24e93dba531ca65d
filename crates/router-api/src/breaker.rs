//! Not waiting for a service that has stopped answering.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row after which a service counts as silent: a busy machine is late now and then, and requests side
/// by side find a frozen one soon enough.
const SILENT_AFTER: u32 = 8;
/// How often one caller looks whether a silent service is back.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What calls to a service have come to of late.
#[derive(Default)]
pub(crate) struct Breaker {
    /// Guards nothing else; each critical section is one look or change.
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    in_a_row: u32,
    failed_at: Option<Instant>,
    looked_at: Option<Instant>,
}

impl Breaker {
    /// Whether it is worth a call. Of a silent service one caller looks from time to time.
    pub(crate) fn allows(&self) -> bool {
        let mut seen = self.lock();
        if seen.in_a_row < SILENT_AFTER {
            return true;
        }
        let due = seen.looked_at.is_none_or(|it| LOOK_EVERY <= it.elapsed());
        if due {
            seen.looked_at = Some(Instant::now());
        }
        due
    }

    /// A call has been answered, or not.
    pub(crate) fn saw(&self, answered: bool) {
        let mut seen = self.lock();
        if answered {
            seen.in_a_row = 0;
            return;
        }
        seen.in_a_row = seen.in_a_row.saturating_add(1);
        seen.failed_at = Some(Instant::now());
    }

    /// Whether a call has failed of late.
    pub(crate) fn has_failed_within(&self, time: Duration) -> bool {
        self.lock().failed_at.is_some_and(|it| it.elapsed() <= time)
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // No holder can leave it half changed.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_service_is_looked_at_from_time_to_time_until_it_answers() {
        let breaker = Breaker::default();
        for _ in 0..SILENT_AFTER {
            assert!(breaker.allows());
            breaker.saw(false);
        }
        assert!(breaker.has_failed_within(Duration::ZERO));
        assert!(breaker.allows(), "the first look");
        assert!(!breaker.allows());
        tokio::time::advance(LOOK_EVERY).await;
        assert!(!breaker.has_failed_within(LOOK_EVERY / 2));
        assert!(breaker.allows());
        breaker.saw(false);
        assert!(!breaker.allows());
        tokio::time::advance(LOOK_EVERY).await;
        assert!(breaker.allows());
        breaker.saw(true);
        assert!(breaker.allows() && breaker.allows());
    }
}
