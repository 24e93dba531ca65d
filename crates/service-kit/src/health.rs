//! What each component still waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The readiness of a process: it is ready when none of its components waits.
#[derive(Clone, Debug, Default)]
pub struct Health {
    waiting: Arc<Mutex<BTreeMap<String, String>>>,
}

/// One component's say in it. A new one waits until it says otherwise.
#[derive(Clone, Debug)]
pub struct Component {
    name: String,
    health: Health,
}

impl Health {
    /// Registers a component, which waits with the reason "starting".
    pub fn component(&self, name: impl Into<String>) -> Component {
        let component = Component {
            name: name.into(),
            health: self.clone(),
        };
        component.waiting("starting");
        component
    }

    /// Each component that is not ready, and why.
    pub fn missing(&self) -> BTreeMap<String, String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        // No holder can leave the map half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Component {
    /// It does its job.
    pub fn ready(&self) {
        self.health.lock().remove(&self.name);
    }

    /// It does not, because of `why`: a short phrase that says what is missing.
    pub fn waiting(&self, why: impl Into<String>) {
        self.health.lock().insert(self.name.clone(), why.into());
    }
}
