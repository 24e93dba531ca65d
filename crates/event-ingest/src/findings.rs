//! What is amiss with the ranks that should be read, for whoever asks whether the process is well.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use contracts::topics::KV_EVENTS;
use domain::{DpRank, RankEndpoint, Worker, WorkerId};
use service_kit::Component;

/// All that is amiss, by where; at most one thing for each registered rank or socket.
#[derive(Clone, Debug)]
pub(crate) struct Findings {
    component: Component,
    amiss: Arc<Mutex<BTreeMap<String, String>>>,
}

/// What may be amiss at one place; gone with it.
#[derive(Debug)]
pub(crate) struct Finding {
    all: Findings,
    place: String,
}

impl Findings {
    pub(crate) fn new(component: Component) -> Self {
        Self {
            component,
            amiss: Arc::default(),
        }
    }

    /// A place for the socket of a rank.
    pub(crate) fn of(&self, worker: &Worker, endpoint: &RankEndpoint) -> Finding {
        Finding {
            all: self.clone(),
            place: format!("{}/{} at {}", worker.id, endpoint.dp_rank, endpoint.publish),
        }
    }

    /// Says which ranks of `worker` nobody can read, for as long as what is returned is kept.
    pub(crate) fn unread(&self, worker: &Worker, endpoints: &[RankEndpoint]) -> Vec<Finding> {
        let has_endpoint = |rank| endpoints.iter().any(|it| it.dp_rank == rank);
        let unread = worker.ranks().filter(|rank| !has_endpoint(*rank));
        let finding = |rank| {
            let finding = Finding {
                all: self.clone(),
                place: format!("{}/{rank}", worker.id),
            };
            finding.is("no endpoint of its events is registered");
            finding
        };
        unread.map(finding).collect()
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        // Nobody can leave the map half changed.
        let mut amiss = self.amiss.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut amiss);
        let all = amiss.iter().map(|(place, what)| format!("{place}: {what}"));
        self.component.finds(all.collect());
    }
}

impl Finding {
    /// A place beside this one, for what a rank appends.
    pub(crate) fn of_log(&self, worker: &WorkerId, dp_rank: DpRank) -> Self {
        Self {
            all: self.all.clone(),
            place: format!("{worker}/{dp_rank} into {}", KV_EVENTS.name),
        }
    }

    pub(crate) fn is(&self, what: impl Into<String>) {
        self.all.change(|amiss| {
            amiss.insert(self.place.clone(), what.into());
        });
    }

    pub(crate) fn is_well(&self) {
        self.all.change(|amiss| {
            amiss.remove(&self.place);
        });
    }
}

impl Drop for Finding {
    fn drop(&mut self) {
        self.is_well();
    }
}
