//! The compact answer to a lookup: targets as dense slots in bit sets.

use domain::Depths;

/// Who holds how much of a request, for the hot path. Reuse one for many lookups: it keeps its memory.
///
/// A target is a *slot*, a small number that [`crate::Reader::target_of`] resolves.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub(crate) found: Found,
    pub(crate) known: u32,
    /// The version of the targets that the slots mean.
    pub(crate) targets_version: u64,
    pub(crate) walk: Walk,
}

/// Groups of slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    groups: Vec<Depths>,
    /// `words` words a group.
    bits: Vec<u64>,
    pub(crate) words: usize,
}

/// Where a lookup stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// Slots that hold every block so far in GPU memory.
    pub(crate) alive: Vec<u64>,
    /// Those of them that hold the run being looked at too. They are not among those alive meanwhile, nor are
    /// those that have been answered.
    pub(crate) next: Vec<u64>,
    /// Slots that hold every block so far, but not all in GPU memory.
    pub(crate) slower: Vec<Slower>,
    /// The runs looked at, and the versions they had.
    pub(crate) visited: Vec<(u32, u64)>,
    /// The runs on the way to a block, and how many blocks of each, from the last run to the first.
    pub(crate) way: Vec<(u32, u32)>,
}

/// A slot whose run in GPU memory has ended and goes on through slower tiers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slower {
    pub(crate) slot: u32,
    pub(crate) gpu: u32,
    /// Where its run in GPU or host memory has ended, if it has.
    pub(crate) host: Option<u32>,
}

impl Answer {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The groups of slots and what each slot of a group holds, at least one block. No slot is in two
    /// groups; two groups may hold equally much. Bit `b` of word `w` is slot `64 * w + b`.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (Depths, &[u64])> {
        let sets = self.found.bits.chunks_exact(self.found.words.max(1));
        self.found.groups.iter().copied().zip(sets)
    }

    /// Leading blocks of the request that the index knows, whether or not a target still holds them all.
    pub fn known(&self) -> u32 {
        self.known
    }

    /// The deepest group's depth in any tier.
    pub fn best(&self) -> u32 {
        let groups = self.found.groups.iter();
        groups.map(|it| it.disk).max().unwrap_or(0)
    }

    pub(crate) fn clear(&mut self) {
        self.found.groups.clear();
        self.found.bits.clear();
        self.known = 0;
        self.walk.slower.clear();
        self.walk.visited.clear();
    }

    /// Answers the slots that hold all that is known.
    pub(crate) fn finish(&mut self) {
        let Self {
            found, known, walk, ..
        } = self;
        if 0 < *known && walk.alive.iter().any(|it| *it != 0) {
            found.group(everywhere(*known)).copy_from_slice(&walk.alive);
        }
        for it in &walk.slower {
            let depths = Depths {
                gpu: it.gpu,
                host: it.host.unwrap_or(*known),
                disk: *known,
            };
            found.add(depths, it.slot);
        }
    }
}

impl Found {
    /// A new group, which has no slots yet.
    #[inline]
    pub(crate) fn group(&mut self, depths: Depths) -> &mut [u64] {
        self.groups.push(depths);
        let from = self.bits.len();
        self.bits.resize(from + self.words, 0);
        &mut self.bits[from..]
    }

    /// Adds a slot that holds so much, to the last group if that holds as much.
    #[inline]
    pub(crate) fn add(&mut self, depths: Depths, slot: u32) {
        if depths.disk == 0 {
            return;
        }
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if self.groups.last() == Some(&depths) {
            let from = self.bits.len() - self.words;
            self.bits[from + word] |= bit;
        } else {
            self.group(depths)[word] |= bit;
        }
    }
}

/// So deep in every tier.
#[inline]
pub(crate) const fn everywhere(depth: u32) -> Depths {
    Depths {
        gpu: depth,
        host: depth,
        disk: depth,
    }
}
