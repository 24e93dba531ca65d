//! What one target holds, by the engine's names.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, IntoValues};
use std::mem;

use domain::{EngineHash, SequenceHash, Tier};

use crate::Claims;
use crate::holders::{ALL_TIERS, Slot, TIERS, place};
use crate::namespaces::{Block, Namespaces};

/// How an engine calls a block: meaningful within one target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) group: u32,
    pub(crate) engine_hash: EngineHash,
}

/// What a name stands for, and how many copies the engine has under it in each tier, at least one in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) block: Block,
    pub(crate) copies: [u32; TIERS],
}

/// One target.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) slot: Slot,
    names: HashMap<Name, Named>,
    /// Copies beyond the first that this target has of a block in a tier, under whatever names: the first
    /// is its bit among the block's holders.
    extra: HashMap<(Block, Tier), u32>,
    /// Distinct blocks in any tier.
    pub(crate) blocks: u64,
    pub(crate) digest: u64,
    pub(crate) claims: Claims,
}

/// What came of a stored copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Whether the target had none of the block in its tier before.
    pub(crate) first: bool,
    /// Whether the name gave up another meaning.
    pub(crate) renamed: bool,
}

impl Rank {
    pub(crate) fn new(slot: Slot) -> Self {
        Self {
            slot,
            names: HashMap::new(),
            extra: HashMap::new(),
            blocks: 0,
            digest: 0,
            claims: Claims::Complete,
        }
    }

    /// The block that `name` stands for.
    pub(crate) fn block(&self, name: &Name) -> Option<Block> {
        self.names.get(name).map(|named| named.block)
    }

    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = (&Name, &Named)> {
        self.names.iter()
    }

    /// Lets go of everything: the target goes on under `slot`, and the caller sweeps the old one's bits.
    pub(crate) fn start_over(&mut self, slot: Slot) -> IntoValues<Name, Named> {
        let empty = Self::new(slot);
        let old = mem::replace(self, empty);
        self.claims = old.claims;
        old.into_names()
    }

    pub(crate) fn into_names(self) -> IntoValues<Name, Named> {
        self.names.into_values()
    }

    /// Adds `copies` copies of `block`, at least one, under `name`. If the name stood for another block,
    /// that meaning is given up with all its copies.
    pub(crate) fn store(
        &mut self,
        all: &mut Namespaces,
        name: Name,
        block: Block,
        (tier, copies): (Tier, u32),
    ) -> Stored {
        let new = Named {
            block,
            copies: [0; TIERS],
        };
        let named = self.names.entry(name).or_insert(new);
        let old = (named.block != block).then(|| mem::replace(named, new));
        let count = &mut named.copies[place(tier)];
        *count = count.saturating_add(copies);
        let first = self.add_copies(all, block, tier, copies);
        // Dropped last, so that a namespace with this one block is not given up in between.
        if let Some(old) = old {
            for tier in ALL_TIERS {
                self.drop_copies(all, old.block, tier, old.copies[place(tier)]);
            }
        }
        Stored {
            first,
            renamed: old.is_some(),
        }
    }

    /// Takes one copy of `name` out of `tier`. None if there was none.
    pub(crate) fn remove(&mut self, all: &mut Namespaces, name: Name, tier: Tier) -> Option<()> {
        let block = self.change_name(name, |copies| {
            let count = &mut copies[place(tier)];
            *count = count.checked_sub(1)?;
            Some(())
        })?;
        self.drop_copies(all, block, tier, 1);
        Some(())
    }

    /// Moves one copy of `name` between tiers. None if there was none in `from`.
    pub(crate) fn retier(
        &mut self,
        all: &mut Namespaces,
        name: Name,
        from: Tier,
        to: Tier,
    ) -> Option<()> {
        let block = self.change_name(name, |copies| {
            let count = &mut copies[place(from)];
            *count = count.checked_sub(1)?;
            let count = &mut copies[place(to)];
            *count = count.saturating_add(1);
            Some(())
        })?;
        // Added first, so that the block is never without a holder in between.
        self.add_copies(all, block, to, 1);
        self.drop_copies(all, block, from, 1);
        Some(())
    }

    fn change_name(
        &mut self,
        name: Name,
        change: impl FnOnce(&mut [u32; TIERS]) -> Option<()>,
    ) -> Option<Block> {
        let Entry::Occupied(mut entry) = self.names.entry(name) else {
            return None;
        };
        change(&mut entry.get_mut().copies)?;
        let named = *entry.get();
        if named.copies == [0; TIERS] {
            entry.remove();
        }
        Some(named.block)
    }

    /// Whether they are the first in their tier.
    fn add_copies(&mut self, all: &mut Namespaces, block: Block, tier: Tier, copies: u32) -> bool {
        let holders = all.holders_mut(block);
        let first = !holders.holds_in(self.slot, tier);
        if first {
            if !holders.holds(self.slot) {
                self.blocks += 1;
                self.digest = self.digest.wrapping_add(block.sequence.digest_term());
            }
            holders.insert(self.slot, tier);
        }
        let more = copies - u32::from(first);
        if 0 < more {
            let extra = self.extra.entry((block, tier)).or_default();
            *extra = extra.saturating_add(more);
        }
        first
    }

    /// Drops copies that were added before.
    fn drop_copies(&mut self, all: &mut Namespaces, block: Block, tier: Tier, copies: u32) {
        if copies == 0 {
            return;
        }
        if let Entry::Occupied(mut extra) = self.extra.entry((block, tier)) {
            if copies < *extra.get() {
                *extra.get_mut() -= copies;
                return;
            }
            let all_but_first = *extra.get() == copies;
            extra.remove();
            if all_but_first {
                return;
            }
        }
        let slot = self.slot;
        let (held, holds) = all.take_from(block, slot, |it| it.remove(slot, tier));
        if held && !holds {
            self.blocks -= 1;
            self.digest = self.digest.wrapping_sub(block.sequence.digest_term());
        }
    }
}

/// The sequence hash of a block that extends `parent`.
pub(crate) fn extend(parent: Option<SequenceHash>, block: domain::BlockHash) -> SequenceHash {
    parent.map_or_else(|| SequenceHash::root(block), |it| it.extend(block))
}
