//! What each component still waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Under which name the process itself is missing.
const PROCESS: &str = "process";
/// Why it is, once it shall end.
const DRAINING: &str = "draining";

/// Under which name the bus is found amiss.
const BUS: &str = "bus";

/// How long new calls are still taken once the process shall end: until callers have read in the fleet that it does.
const NOTICE: Duration = Duration::from_secs(1);

/// The readiness of a process: it is ready when none of its components waits.
#[derive(Clone, Debug, Default)]
pub struct Health {
    said: Arc<Mutex<Said>>,
}

/// What components have said.
#[derive(Debug, Default)]
struct Said {
    waiting: BTreeMap<String, String>,
    is_draining: bool,
    findings: BTreeMap<String, Vec<String>>,
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
        let said = self.lock();
        let mut missing = said.waiting.clone();
        if said.is_draining {
            missing.insert(PROCESS.to_owned(), DRAINING.to_owned());
        }
        missing
    }

    /// Resolves a second after `shutdown`. From then on the process says that it is draining, and serves all the
    /// same: callers have that second to go elsewhere.
    pub async fn notice(&self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
        self.lock().is_draining = true;
        sleep(NOTICE).await;
    }

    /// What each component has found amiss without being kept from its job by it.
    pub fn findings(&self) -> BTreeMap<String, Vec<String>> {
        self.lock().findings.clone()
    }

    /// The bus does not take what this process says of itself, because of this; none sets it right.
    pub fn bus_takes_nothing(&self, why: Option<String>) {
        let findings = &mut self.lock().findings;
        match why {
            Some(why) => findings.insert(BUS.to_owned(), vec![why]),
            None => findings.remove(BUS),
        };
    }

    /// Whether the bus does not take what is written.
    pub fn bus_fails(&self) -> bool {
        self.lock().findings.contains_key(BUS)
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        // No holder can leave a map half changed.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Component {
    /// It does its job.
    pub fn ready(&self) {
        self.health.lock().waiting.remove(&self.name);
    }

    /// It does not, because of `why`: a short phrase that says what is missing. Says whether that is news.
    pub fn waiting(&self, why: impl Into<String>) -> bool {
        let why = why.into();
        let mut said = self.health.lock();
        let before = said.waiting.insert(self.name.clone(), why.clone());
        before != Some(why)
    }

    /// These things are amiss now, in place of what was before; they do not keep it from its job.
    pub fn finds(&self, findings: Vec<String>) {
        let mut said = self.health.lock();
        match findings.is_empty() {
            true => said.findings.remove(&self.name),
            false => said.findings.insert(self.name.clone(), findings),
        };
    }
}
