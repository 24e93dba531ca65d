//! The workers as they are now: written by their loops, read by every dispatch.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use domain::{TargetState, Worker, WorkerId};

use crate::address::EngineUrl;

/// Workers that answer, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster {
    /// Guards nothing but the map; each critical section is one look-up or insertion.
    workers: Arc<RwLock<BTreeMap<WorkerId, (EngineUrl, Worker)>>>,
}

impl Roster {
    pub(crate) fn get(&self, id: &WorkerId) -> Option<(EngineUrl, Worker)> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        workers.get(id).cloned()
    }

    pub(crate) fn set(&self, url: EngineUrl, worker: Worker) {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        workers.insert(worker.id.clone(), (url, worker));
    }

    pub(crate) fn remove(&self, id: &WorkerId) {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        workers.remove(id);
    }

    pub(crate) fn any_ready(&self) -> bool {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        workers
            .values()
            .any(|(_, worker)| worker.state == TargetState::Ready)
    }
}
