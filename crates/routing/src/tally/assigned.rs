//! The prefill assigned to each target in a window of time: what Preble calls its load.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use domain::{Target, Timestamp, Tokens};

/// The window: Preble's three minutes.
const WINDOW: Duration = Duration::from_secs(180);
/// Assignments remembered of one target: more than 360 a second for the whole window. Beyond, the oldest is forgotten.
const MAX_ASSIGNED: usize = 65_536;

/// What was assigned of late, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Assigned {
    targets: HashMap<Target, VecDeque<(Timestamp, Tokens)>>,
}

impl Assigned {
    /// Tokens assigned to a target in the window.
    pub(crate) fn at(&self, target: &Target, now: Timestamp) -> f64 {
        let assigned = self.targets.get(target).into_iter().flatten();
        let recent = assigned.rev().take_while(|it| now.since(it.0) < WINDOW);
        recent.map(|it| it.1.as_f64()).sum()
    }

    /// Tokens are assigned to a target.
    pub(crate) fn add(&mut self, target: &Target, tokens: Tokens, now: Timestamp) {
        let assigned = self.targets.entry(target.clone()).or_default();
        if assigned.len() >= MAX_ASSIGNED {
            assigned.pop_front();
        }
        assigned.push_back((now, tokens));
    }

    /// Forgets what is before the window.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.targets.retain(|_, assigned| {
            while assigned.front().is_some_and(|it| WINDOW <= now.since(it.0)) {
                assigned.pop_front();
            }
            !assigned.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_assigned_counts_for_three_minutes() {
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        let target: Target = "w1#1/0".parse().expect("a target");
        let mut assigned = Assigned::default();
        assigned.add(&target, Tokens::new(100), at(10));
        assigned.add(&target, Tokens::new(20), at(100));
        assert_eq!(assigned.at(&target, at(189)), 120.0);
        assert_eq!(assigned.at(&target, at(190)), 20.0);
        assigned.expire(at(190));
        assert_eq!(assigned.at(&target, at(190)), 20.0);
        assigned.expire(at(280));
        assert!(assigned.targets.is_empty());
    }
}
