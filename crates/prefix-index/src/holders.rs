//! Sets of dense target slots, and the holders of one block by tier.

use domain::Tier;

/// How many tiers there are.
pub(crate) const TIERS: usize = 3;

/// The tiers, fastest first.
pub(crate) const ALL_TIERS: [Tier; TIERS] = [Tier::Gpu, Tier::Host, Tier::Disk];

/// A tier's place in an array of [`TIERS`].
pub(crate) const fn place(tier: Tier) -> usize {
    match tier {
        Tier::Gpu => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
    }
}

/// The dense number of a target while it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot(pub(crate) u32);

impl Slot {
    const fn word(self) -> usize {
        self.0 as usize / 64
    }

    const fn bit(self) -> u64 {
        1 << (self.0 % 64)
    }
}

/// A set of slots. The first 64 need no memory of their own.
#[derive(Clone, Debug)]
pub(crate) enum SlotSet {
    /// Slots below 64.
    Word(u64),
    /// One bit a slot.
    Words(Box<[u64]>),
}

impl Default for SlotSet {
    fn default() -> Self {
        Self::Word(0)
    }
}

impl SlotSet {
    pub(crate) fn words(&self) -> &[u64] {
        match self {
            Self::Word(word) => std::slice::from_ref(word),
            Self::Words(words) => words,
        }
    }

    /// The word at `index`; beyond the end there is nothing.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.words().get(index).copied().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words().iter().all(|word| *word == 0)
    }

    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.word(slot.word()) & slot.bit() != 0
    }

    pub(crate) fn insert(&mut self, slot: Slot) {
        let index = slot.word();
        if self.words().len() <= index {
            let mut longer = self.words().to_vec();
            longer.resize(index + 1, 0);
            *self = Self::Words(longer.into_boxed_slice());
        }
        self.words_mut()[index] |= slot.bit();
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        if let Some(word) = self.words_mut().get_mut(slot.word()) {
            *word &= !slot.bit();
        }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        match self {
            Self::Word(word) => std::slice::from_mut(word),
            Self::Words(words) => words,
        }
    }
}

/// Who holds one block, tier by tier.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    tiers: [SlotSet; TIERS],
}

impl Holders {
    pub(crate) fn in_tier(&self, tier: Tier) -> &SlotSet {
        &self.tiers[place(tier)]
    }

    pub(crate) fn holds_in(&self, slot: Slot, tier: Tier) -> bool {
        self.in_tier(tier).contains(slot)
    }

    pub(crate) fn holds(&self, slot: Slot) -> bool {
        self.tiers.iter().any(|tier| tier.contains(slot))
    }

    pub(crate) fn insert(&mut self, slot: Slot, tier: Tier) {
        self.tiers[place(tier)].insert(slot);
    }

    pub(crate) fn remove(&mut self, slot: Slot, tier: Tier) {
        self.tiers[place(tier)].remove(slot);
    }

    pub(crate) fn remove_all(&mut self, slot: Slot) {
        self.tiers.iter_mut().for_each(|tier| tier.remove(slot));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tiers.iter().all(SlotSet::is_empty)
    }
}
