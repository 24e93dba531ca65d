//! The router's mind behind its lock, and the numbers that make decisions apart.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::{DecisionId, InstanceId, ModelName, TargetState, Timestamp, Worker};
use routing::Router;

/// One router replica's mind, which its requests share.
pub(crate) struct Mind {
    /// Guards all of the mind; held for one decision or one change, never across an await.
    router: Mutex<Router>,
}

impl Mind {
    pub(crate) fn new(router: Router) -> Self {
        let router = Mutex::new(router);
        Self { router }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Router> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Workers of `model` that can be asked something now.
    pub(crate) fn serving(&self, model: &ModelName, now: Timestamp) -> Vec<Worker> {
        let router = self.lock();
        let workers = router.workers();
        workers
            .filter(|it| it.model == *model && serves(it, now))
            .cloned()
            .collect()
    }

    /// Whether any worker can serve.
    pub(crate) fn any_serving(&self, now: Timestamp) -> bool {
        self.lock().workers().any(|it| serves(it, now))
    }
}

fn serves(worker: &Worker, now: Timestamp) -> bool {
    now < worker.lease_until
        && match worker.state {
            TargetState::Ready | TargetState::Suspect | TargetState::Partial => true,
            TargetState::Warming | TargetState::Draining | TargetState::Gone => false,
        }
}

/// Makes ids and seeds that no other router makes.
pub(crate) struct Ids {
    random: RandomState,
    instance: u64,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new(instance: &InstanceId) -> Self {
        let random = RandomState::new();
        Self {
            instance: random.hash_one(instance),
            random,
            next: AtomicU64::new(0),
        }
    }

    /// The next decision's id and the seed it may draw from.
    pub(crate) fn next(&self) -> (DecisionId, u64) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = (u128::from(self.instance) << 64) | u128::from(number);
        (DecisionId::new(id), self.random.hash_one(number))
    }
}
