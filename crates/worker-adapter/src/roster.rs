//! The workers as they are now: written by their loops, read by every dispatch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use domain::{TargetState, Worker, WorkerId};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::address::EngineUrl;

/// How long a dispatch waits for its worker's first answer: an engine has 2 s for each question, and one that
/// is there answers at once.
const FIRST_ANSWER: Duration = Duration::from_secs(3);

/// Workers that answer, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster {
    /// Guards nothing but the map; each critical section is one look-up or insertion.
    workers: Arc<RwLock<BTreeMap<WorkerId, (EngineUrl, Worker)>>>,
    /// Workers that have neither answered nor failed to since the start.
    unasked: Arc<watch::Sender<BTreeSet<WorkerId>>>,
}

impl Roster {
    /// A roster of which `workers` are going to be asked.
    pub(crate) fn expecting(workers: impl IntoIterator<Item = WorkerId>) -> Self {
        let roster = Self::default();
        roster.unasked.send_replace(workers.into_iter().collect());
        roster
    }

    /// The worker has been asked for the first time, whatever it said.
    pub(crate) fn asked(&self, id: &WorkerId) {
        self.unasked.send_if_modified(|unasked| unasked.remove(id));
    }

    /// A worker as it is, or as it turns out to be: after a start others know of it before it has been asked.
    pub(crate) async fn find(&self, id: &WorkerId) -> Option<(EngineUrl, Worker)> {
        let mut unasked = self.unasked.subscribe();
        let asked = unasked.wait_for(|unasked| !unasked.contains(id));
        // Whether it was asked in time or not, the roster says what is known.
        let _late = timeout(FIRST_ANSWER, asked).await;
        self.get(id)
    }

    fn get(&self, id: &WorkerId) -> Option<(EngineUrl, Worker)> {
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
