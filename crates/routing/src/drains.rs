//! What operators drain: workers and ranks that take no new conversation and give up those they have.

use std::collections::{BTreeMap, BTreeSet};

use domain::{DpRank, TargetState, WorkerId};

/// Workers that are drained, whole or in part, in whatever incarnation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drains(BTreeMap<WorkerId, Drained>);

/// What of a worker is drained; never nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// All of it, whatever is said of its ranks.
    pub whole: bool,
    /// These ranks by themselves.
    pub ranks: BTreeSet<DpRank>,
}

impl Drains {
    /// All that is drained; a rank by itself, or with none its whole worker.
    pub(crate) fn new(drained: impl IntoIterator<Item = (WorkerId, Option<DpRank>)>) -> Self {
        let mut drains = Self::default();
        for (worker, dp_rank) in drained {
            let of_worker = drains.0.entry(worker).or_default();
            match dp_rank {
                Some(dp_rank) => drop(of_worker.ranks.insert(dp_rank)),
                None => of_worker.whole = true,
            }
        }
        drains
    }

    pub(crate) fn of(&self, worker: &WorkerId) -> Option<&Drained> {
        self.0.get(worker)
    }

    /// The state of a target that is `registered` so: one that cannot serve is not drained either.
    pub(crate) fn state(
        &self,
        worker: &WorkerId,
        dp_rank: DpRank,
        registered: TargetState,
    ) -> TargetState {
        let drained = self.of(worker);
        match registered {
            TargetState::Ready | TargetState::Suspect | TargetState::Partial
                if drained.is_some_and(|it| it.covers(dp_rank)) =>
            {
                TargetState::Draining
            }
            state => state,
        }
    }
}

impl Drained {
    /// Whether a rank is drained, by itself or with its worker.
    pub fn covers(&self, dp_rank: DpRank) -> bool {
        self.whole || self.ranks.contains(&dp_rank)
    }
}
