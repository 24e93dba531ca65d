//! Whose turn it is among tenants: start-time fair queueing.
//!
//! In each class a tenant's tags are tokens served to it, divided by its weight. A request starts where its tenant's
//! last one ended, or at the clock, whichever is later; the one that starts first goes; the clock is where the one
//! that went last has started. So whoever comes back after an absence has saved nothing up and owes nothing.

use std::collections::{BTreeMap, HashMap};

use domain::TenantId;

use super::Priority;

/// The tags of all classes.
#[derive(Debug, Default)]
pub(super) struct Turns {
    classes: BTreeMap<Priority, Class>,
}

#[derive(Debug, Default)]
struct Class {
    clock: f64,
    /// Where the last request of a tenant ended, of those that are past the clock.
    ends: HashMap<TenantId, f64>,
}

impl Turns {
    /// Where the next request of a tenant starts in a class.
    pub(super) fn start(&self, class: Priority, tenant: &TenantId) -> f64 {
        let Some(class) = self.classes.get(&class) else {
            return 0.0;
        };
        let end = class.ends.get(tenant).copied();
        end.map_or(class.clock, |end| end.max(class.clock))
    }

    /// A request of a tenant goes, which costs so much of its share.
    pub(super) fn take(&mut self, class: Priority, tenant: &TenantId, cost: f64) {
        let start = self.start(class, tenant);
        let class = self.classes.entry(class).or_default();
        class.clock = class.clock.max(start);
        let clock = class.clock;
        class.ends.insert(tenant.clone(), start + cost);
        class.ends.retain(|_, end| clock < *end);
    }

    /// Nobody waits any more: whoever comes next starts level.
    pub(super) fn reset(&mut self) {
        self.classes.clear();
    }
}
