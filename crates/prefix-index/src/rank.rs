//! What the writer knows of one target.

use std::collections::HashMap;

use domain::Tier;

use crate::Claims;
use crate::run::Tiers;
use crate::table::Place;

/// How many tiers there are.
pub(crate) const TIERS: usize = 3;

/// Conflicts before a target moves to a domain of its own: fewer are not worth a table.
const MOVED_CONFLICTS: u32 = 64;
/// The most blocks of a target that moves. It takes about half a microsecond a block.
const MOVED_BLOCKS: u64 = 1 << 17;

/// The tiers, fastest first.
pub(crate) const ALL_TIERS: [Tier; TIERS] = [Tier::Gpu, Tier::Host, Tier::Disk];

/// A tier's place in an array of [`TIERS`].
pub(crate) const fn nth(tier: Tier) -> usize {
    match tier {
        Tier::Gpu => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
    }
}

impl Tiers {
    pub(crate) const fn of(tier: Tier) -> Self {
        Self(1 << nth(tier))
    }

    pub(crate) const fn has(self, tier: Tier) -> bool {
        self.0 & Self::of(tier).0 != 0
    }

    pub(crate) const fn with(self, tier: Tier) -> Self {
        Self(self.0 | Self::of(tier).0)
    }

    pub(crate) const fn without(self, tier: Tier) -> Self {
        Self(self.0 & !Self::of(tier).0)
    }
}

/// One target.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) slot: u32,
    /// Whose names it uses; none before its first block.
    pub(crate) domain: Option<u32>,
    /// The namespace of its last block.
    pub(crate) namespace: u32,
    /// The runs that it holds something of, and some that it does not any more; some twice.
    pub(crate) runs: Vec<u32>,
    /// How many it does.
    pub(crate) held_runs: usize,
    /// Distinct blocks in any tier.
    pub(crate) blocks: u64,
    pub(crate) claims: Claims,
    pub(crate) odd: OddNames,
    /// How often a block got an odd name for no reason but that others of its domain call it otherwise, or
    /// another block so. [`u32::MAX`] where nothing is to be done about it.
    pub(crate) conflicts: u32,
    /// Whether what it claims lacks something that had no room in a run.
    pub(crate) crowded_out: bool,
}

/// Blocks that a target does not hold once a tier, as group 0, under their usual name.
#[derive(Debug, Default)]
pub(crate) struct OddNames {
    places: HashMap<(u32, u64), Place>,
    blocks: HashMap<Place, Vec<OddName>>,
}

/// One name of a block, with at least one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OddName {
    pub(crate) group: u32,
    pub(crate) name: u64,
    pub(crate) copies: [u32; TIERS],
}

impl Rank {
    pub(crate) fn new(slot: u32) -> Self {
        Self {
            slot,
            domain: None,
            namespace: u32::MAX,
            runs: Vec::new(),
            held_runs: 0,
            blocks: 0,
            claims: Claims::Complete,
            odd: OddNames::default(),
            conflicts: 0,
            crowded_out: false,
        }
    }
}

impl Rank {
    /// Whether it is worth a domain of its own: most of its names do not fit the one it is in, and it is not so
    /// large that to move it takes long.
    pub(crate) fn is_misplaced(&self) -> bool {
        let odd = self.odd.blocks.len() as u64;
        (MOVED_CONFLICTS..u32::MAX).contains(&self.conflicts)
            && self.blocks < 2 * odd
            && self.blocks <= MOVED_BLOCKS
    }
}

impl OddNames {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The block under an odd name.
    pub(crate) fn place(&self, group: u32, name: u64) -> Option<Place> {
        self.places.get(&(group, name)).copied()
    }

    /// All the names of a block, if it is odd.
    pub(crate) fn of(&self, at: Place) -> Option<&[OddName]> {
        self.blocks.get(&at).map(Vec::as_slice)
    }

    /// Takes out all the names of a block, if it is odd.
    pub(crate) fn take(&mut self, at: Place) -> Option<Vec<OddName>> {
        let names = self.blocks.remove(&at)?;
        for it in &names {
            self.places.remove(&(it.group, it.name));
        }
        Some(names)
    }

    pub(crate) fn put(&mut self, at: Place, names: Vec<OddName>) {
        for it in &names {
            self.places.insert((it.group, it.name), at);
        }
        self.blocks.insert(at, names);
    }
}

impl OddName {
    /// The tiers with copies.
    pub(crate) fn tiers(&self) -> Tiers {
        let has = |tier: &Tier| self.copies[nth(*tier)] != 0;
        let tiers = ALL_TIERS.into_iter().filter(has);
        tiers.fold(Tiers::NONE, Tiers::with)
    }

    /// One copy in each of `tiers`, under group 0.
    pub(crate) fn usual(name: u64, tiers: Tiers) -> Self {
        Self {
            group: 0,
            name,
            copies: ALL_TIERS.map(|tier| u32::from(tiers.has(tier))),
        }
    }
}
