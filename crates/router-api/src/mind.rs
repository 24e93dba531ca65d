//! The router's mind behind its lock, and the numbers that make decisions apart.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::{DecisionId, DpRank, InstanceId, ModelName, TargetState, Timestamp, Worker};
use routing::Router;

/// Workers named where none takes a request; all of them are listed elsewhere.
const MAX_NAMED: usize = 10;

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
            .filter(|it| it.model == *model && serves(&router, it, now))
            .cloned()
            .collect()
    }

    /// Why no target takes a new request; none where one does.
    pub(crate) fn takes_nothing(&self, now: Timestamp) -> Option<String> {
        let router = self.lock();
        let mut closed = Vec::new();
        for worker in router.workers().filter(|it| serves(&router, it, now)) {
            if let Some(refusal) = router.refusal(worker) {
                closed.push(refusal.to_string());
            } else if worker.ranks().all(|it| is_drained(&router, worker, it)) {
                closed.push(format!("worker {} is drained", worker.id));
            } else {
                return None;
            }
        }
        let more = closed.len().saturating_sub(MAX_NAMED);
        closed.truncate(MAX_NAMED);
        closed.extend((0 < more).then(|| format!("{more} more")));
        Some(match closed.is_empty() {
            true => "no worker is ready".to_owned(),
            false => format!("no target takes a new request: {}", closed.join("; ")),
        })
    }
}

fn is_drained(router: &Router, worker: &Worker, dp_rank: DpRank) -> bool {
    matches!(
        router.state(worker, dp_rank),
        TargetState::Draining | TargetState::Leaving
    )
}

fn serves(router: &Router, worker: &Worker, now: Timestamp) -> bool {
    router.is_registered(worker, now)
        && match worker.state {
            TargetState::Ready | TargetState::Suspect | TargetState::Partial => true,
            TargetState::Warming
            | TargetState::Draining
            | TargetState::Leaving
            | TargetState::Gone => false,
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

    /// Whether a decision's id is one of these.
    pub(crate) fn made(&self, id: DecisionId) -> bool {
        let next = u128::from(self.next.load(Ordering::Relaxed));
        let first = u128::from(self.instance) << 64;
        (first..first + next).contains(&id.get())
    }

    /// The next decision's id and the seed it may draw from.
    pub(crate) fn next(&self) -> (DecisionId, u64) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = (u128::from(self.instance) << 64) | u128::from(number);
        (DecisionId::new(id), self.random.hash_one(number))
    }
}
