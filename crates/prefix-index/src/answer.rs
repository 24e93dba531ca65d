//! The compact answer to a lookup: targets as dense slots in bit sets.

use domain::Depths;

/// Who holds how much of a request, for the hot path. Reuse one for many lookups: it keeps its memory.
///
/// A target is a *slot*, a small number that [`crate::Reader::target_of`] resolves.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub(crate) groups: Vec<Depths>,
    /// `words` words a group.
    pub(crate) bits: Vec<u64>,
    pub(crate) words: usize,
    pub(crate) known: u32,
    /// The state of the targets that the slots mean.
    pub(crate) targets_version: u64,
}

impl Answer {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The groups of slots and what each slot of a group holds, at least one block. No slot is in two
    /// groups; two groups may hold equally much. Bit `b` of word `w` is slot `64 * w + b`.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (Depths, &[u64])> {
        let sets = self.bits.chunks_exact(self.words.max(1));
        self.groups.iter().copied().zip(sets)
    }

    /// Leading blocks of the request that the index knows, whether or not a target still holds them all.
    pub fn known(&self) -> u32 {
        self.known
    }

    /// The deepest group's depth in any tier.
    pub fn best(&self) -> u32 {
        self.groups.iter().map(|it| it.disk).max().unwrap_or(0)
    }
}
