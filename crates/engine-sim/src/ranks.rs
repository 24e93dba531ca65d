//! How an engine's ranks are numbered: from 0 in the model, from the start rank on in events and metrics.

use domain::DpRank;

/// The ranks of one engine of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ranks {
    /// The first one's number in the deployment.
    pub(crate) start: u32,
    /// How many.
    pub(crate) count: u32,
}

impl Ranks {
    /// Their numbers in the deployment, ascending.
    pub(crate) fn iter(self) -> impl Iterator<Item = DpRank> {
        (0..self.count).map(move |at| self.global(DpRank::new(at)))
    }

    /// The number in the deployment of the model's rank.
    pub(crate) fn global(self, local: DpRank) -> DpRank {
        DpRank::new(self.start.saturating_add(local.get()))
    }

    /// The model's rank by its number in the deployment; none out of range.
    pub(crate) fn local(self, global: i64) -> Option<DpRank> {
        let local = u32::try_from(global - i64::from(self.start)).ok()?;
        (local < self.count).then(|| DpRank::new(local))
    }

    /// The same ranks, counted from 0.
    pub(crate) fn counted_from_zero(self) -> Self {
        Self { start: 0, ..self }
    }

    /// The number after the last one's.
    pub(crate) fn end(self) -> u32 {
        self.start.saturating_add(self.count)
    }
}
