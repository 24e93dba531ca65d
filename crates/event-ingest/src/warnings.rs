//! Logs about a peer's faults, at most one a minute for each kind.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Between two lines about the same kind of fault.
const INTERVAL: Duration = Duration::from_secs(60);

/// When each kind of fault was last logged. Kinds are names in the code, so they are few.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    last: BTreeMap<&'static str, Instant>,
}

impl Warnings {
    /// Whether a fault of `kind` may be logged now.
    pub(crate) fn is_due(&mut self, kind: &'static str) -> bool {
        let now = Instant::now();
        let due = self
            .last
            .get(kind)
            .is_none_or(|last| *last + INTERVAL <= now);
        if due {
            self.last.insert(kind, now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn of_each_kind_one_is_due_a_minute() {
        let mut warnings = Warnings::default();
        let mut due = [0; 2];
        for _ in 0..180 {
            for (count, kind) in due.iter_mut().zip(["one_frame", "end_marker"]) {
                *count += u32::from(warnings.is_due(kind));
            }
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(due, [3, 3]);
    }
}
