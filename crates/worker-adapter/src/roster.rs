//! The workers as they are now: written by their loops, read by every dispatch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use domain::{TargetState, Worker, WorkerId};
use service_kit::CancellationToken;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::address::EngineUrl;

/// How long a dispatch waits for its worker's first answer: an engine has 2 s for each question, and one that
/// is there answers at once.
const FIRST_ANSWER: Duration = Duration::from_secs(3);

/// A worker that answers.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) url: EngineUrl,
    pub(crate) worker: Worker,
    /// How long the first byte of an answer may take.
    pub(crate) first_byte: Duration,
    /// Cancelled when the worker is declared gone. A worker that comes back has another one.
    pub(crate) gone: CancellationToken,
}

/// Workers that answer, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster {
    /// Guards nothing but the map; each critical section is one look-up or insertion.
    workers: Arc<RwLock<BTreeMap<WorkerId, Entry>>>,
    /// Workers that have neither answered nor failed to since the start.
    unasked: Arc<watch::Sender<BTreeSet<WorkerId>>>,
    /// What is amiss with workers, one sentence each. Guards nothing else.
    complaints: Arc<RwLock<BTreeMap<WorkerId, String>>>,
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

    /// This is amiss with a worker, until it is set right; none sets it right.
    pub(crate) fn complain(&self, id: &WorkerId, why: Option<String>) {
        let complaints = self.complaints.write();
        let mut complaints = complaints.unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => complaints.insert(id.clone(), why),
            None => complaints.remove(id),
        };
    }

    /// What is amiss, in the order of the workers' names.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let complaints = self.complaints.read();
        let complaints = complaints.unwrap_or_else(PoisonError::into_inner);
        complaints.values().cloned().collect()
    }

    /// A worker as it is, or as it turns out to be: after a start others know of it before it has been asked.
    pub(crate) async fn find(&self, id: &WorkerId) -> Option<Entry> {
        let mut unasked = self.unasked.subscribe();
        let asked = unasked.wait_for(|unasked| !unasked.contains(id));
        // Whether it was asked in time or not, the roster says what is known.
        let _late = timeout(FIRST_ANSWER, asked).await;
        self.get(id)
    }

    fn get(&self, id: &WorkerId) -> Option<Entry> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        workers.get(id).cloned()
    }

    /// The worker answers, for the first time or again.
    pub(crate) fn set(&self, url: EngineUrl, worker: Worker, first_byte: Duration) {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        let known = workers.get(&worker.id);
        let gone = known.map(|it| it.gone.clone()).unwrap_or_default();
        let entry = Entry {
            url,
            first_byte,
            gone,
            worker,
        };
        workers.insert(entry.worker.id.clone(), entry);
    }

    /// The worker is not watched any more: it takes no new calls and ends those it has.
    pub(crate) fn release(&self, id: &WorkerId) {
        self.remove(id);
    }

    /// The worker is gone: it takes no new calls, and those it has not begun to answer break off.
    pub(crate) fn lose(&self, id: &WorkerId) {
        if let Some(entry) = self.remove(id) {
            entry.gone.cancel();
        }
    }

    fn remove(&self, id: &WorkerId) -> Option<Entry> {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        workers.remove(id)
    }

    pub(crate) fn any_ready(&self) -> bool {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        workers
            .values()
            .any(|entry| entry.worker.state == TargetState::Ready)
    }
}
