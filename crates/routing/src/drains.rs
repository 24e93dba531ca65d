//! What operators drain: workers and ranks that take no new conversation.

use std::collections::BTreeMap;

use domain::{DpRank, Drain, TargetState, WorkerId};

/// Workers that are drained, whole or in part, in whatever incarnation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drains(BTreeMap<WorkerId, Drained>);

/// What of a worker is drained; never nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// All of it, whatever is said of its ranks.
    pub whole: Option<Drain>,
    /// These ranks by themselves.
    pub ranks: BTreeMap<DpRank, Drain>,
}

impl Drains {
    pub(crate) fn new(drained: impl IntoIterator<Item = Drain>) -> Self {
        let mut drains = Self::default();
        for drain in drained {
            let of_worker = drains.0.entry(drain.worker.clone()).or_default();
            match drain.dp_rank {
                Some(dp_rank) => drop(of_worker.ranks.insert(dp_rank, drain)),
                None => of_worker.whole = Some(drain),
            }
        }
        drains
    }

    pub(crate) fn of(&self, worker: &WorkerId) -> Option<&Drained> {
        self.0.get(worker)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Drain> {
        self.0.values().flat_map(Drained::all)
    }

    /// The state of a target that is `registered` so: one that cannot serve is not drained either.
    pub(crate) fn state(
        &self,
        worker: &WorkerId,
        dp_rank: DpRank,
        registered: TargetState,
    ) -> TargetState {
        let serves = matches!(
            registered,
            TargetState::Ready | TargetState::Suspect | TargetState::Partial
        );
        let drained = self.of(worker).filter(|_| serves);
        match drained.and_then(|it| it.moves(dp_rank)) {
            Some(true) => TargetState::Leaving,
            Some(false) => TargetState::Draining,
            None => registered,
        }
    }
}

impl Drained {
    /// All drains of the worker.
    pub fn all(&self) -> impl Iterator<Item = &Drain> {
        self.whole.iter().chain(self.ranks.values())
    }

    /// Whether the conversations of a rank are to go elsewhere; none where neither it nor its worker is drained.
    pub fn moves(&self, dp_rank: DpRank) -> Option<bool> {
        let both = self.whole.iter().chain(self.ranks.get(&dp_rank));
        both.map(|it| it.moves).reduce(|one, other| one || other)
    }
}
