//! Whose turn it is among tenants: start-time fair queueing.
//!
//! In each priority a tenant's tags are tokens served to it, divided by its weight. A request starts where its tenant's
//! last one ended, or at the clock, whichever is later; the one that starts first goes; the clock is where the one
//! that went last has started. So whoever comes back after an absence has saved nothing up and owes nothing.

use std::collections::{BTreeMap, HashMap};

use domain::TenantId;

use super::Priority;

/// The tags of all priorities.
#[derive(Debug, Default)]
pub(super) struct Turns {
    levels: BTreeMap<Priority, Level>,
}

#[derive(Debug, Default)]
struct Level {
    clock: f64,
    /// Where the last request of a tenant ended, of those that are past the clock.
    ends: HashMap<TenantId, f64>,
}

impl Turns {
    /// Where the next request of a tenant and priority starts.
    pub(super) fn start(&self, priority: Priority, tenant: &TenantId) -> f64 {
        let Some(level) = self.levels.get(&priority) else {
            return 0.0;
        };
        let end = level.ends.get(tenant).copied();
        end.map_or(level.clock, |end| end.max(level.clock))
    }

    /// A request of a tenant goes, which costs so much of its share.
    pub(super) fn take(&mut self, priority: Priority, tenant: &TenantId, cost: f64) {
        let start = self.start(priority, tenant);
        let level = self.levels.entry(priority).or_default();
        level.clock = level.clock.max(start);
        let clock = level.clock;
        level.ends.insert(tenant.clone(), start + cost);
        level.ends.retain(|_, end| clock < *end);
    }

    /// Nobody waits any more: whoever comes next starts level.
    pub(super) fn reset(&mut self) {
        self.levels.clear();
    }
}
