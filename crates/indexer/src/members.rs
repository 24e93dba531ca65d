//! The workers of `fleet`, as those see them who ask by a model's name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::{ModelName, Timestamp, Worker, WorkerId};

/// The registrations, as last read; as many as `fleet` has.
#[derive(Default)]
pub(crate) struct Members {
    /// Guards nothing else; held to look up or to change one.
    workers: Mutex<BTreeMap<WorkerId, Worker>>,
}

impl Members {
    pub(crate) fn register(&self, worker: Worker) {
        self.lock().insert(worker.id.clone(), worker);
    }

    pub(crate) fn deregister(&self, worker: &WorkerId) {
        self.lock().remove(worker);
    }

    /// All whose lease has not ended.
    pub(crate) fn live(&self, now: Timestamp) -> Vec<Worker> {
        let workers = self.lock();
        let live = workers.values().filter(|it| now < it.lease_until);
        live.cloned().collect()
    }

    /// Those of them that serve the model of this name; else the names of the models that are served.
    pub(crate) fn of_model(
        &self,
        name: &str,
        now: Timestamp,
    ) -> Result<Vec<Worker>, BTreeSet<ModelName>> {
        let (serving, others): (Vec<Worker>, Vec<Worker>) = self
            .live(now)
            .into_iter()
            .partition(|it| it.model.as_str() == name);
        if serving.is_empty() {
            return Err(others.into_iter().map(|it| it.model).collect());
        }
        Ok(serving)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Worker>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
