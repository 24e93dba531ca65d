//! Looking up a request.

use std::cmp::Reverse;

use domain::{Depths, Namespace, OverlapGroup, SequenceHash, Target, Tier};

use crate::PrefixIndex;
use crate::holders::{Holders, SlotSet, TIERS};

/// Who holds how much of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Targets that hold at least one leading block, by what they hold, deepest first.
    pub groups: Vec<OverlapGroup>,
    /// Leading blocks that any target ever announced, as far as is remembered.
    pub stored: u32,
}

/// The leading run of each target while a request is walked.
struct Walk {
    /// For each tier, a bit for each slot whose run through that tier still goes on; `words` words a tier.
    alive: Vec<u64>,
    words: usize,
    /// For each slot, how long its runs were.
    ended: Vec<[u32; TIERS]>,
}

impl PrefixIndex {
    /// Who holds how much of the request whose sequence hashes, from the first block, are `hashes`.
    pub fn overlap(&self, namespace: &Namespace, hashes: &[SequenceHash]) -> Overlap {
        let table = self.namespaces.table(namespace);
        let mut groups = Vec::new();
        let mut deepest = 0;
        if let Some(table) = table {
            let mut walk = Walk::new(&self.live);
            let mut depth = 0;
            for hash in hashes {
                match table.blocks.get(hash) {
                    Some(holders) if walk.step(depth, holders) => depth += 1,
                    _ => break,
                }
            }
            deepest = depth as usize;
            groups = self.groups(&walk.finish(depth));
        }
        let departed = self.namespaces.departed().of(namespace);
        let announced = |hash: &&SequenceHash| {
            table.is_some_and(|it| it.blocks.contains_key(hash))
                || departed.is_some_and(|it| it.contains(**hash))
        };
        let beyond = hashes[deepest..].iter().take_while(announced).count();
        Overlap {
            groups,
            stored: u32::try_from(deepest + beyond).unwrap_or(u32::MAX),
        }
    }

    fn groups(&self, runs: &[[u32; TIERS]]) -> Vec<OverlapGroup> {
        let depths_of = |slot: crate::holders::Slot| {
            let [gpu, host, disk] = runs[slot.0 as usize];
            Depths { gpu, host, disk }
        };
        let mut held: Vec<(Depths, &Target)> = self
            .ranks
            .iter()
            .map(|(target, rank)| (depths_of(rank.slot), target))
            .filter(|(depths, _)| 0 < depths.disk)
            .collect();
        // Stable, so that targets stay in ascending order.
        held.sort_by_key(|(depths, _)| Reverse(*depths));
        held.chunk_by(|a, b| a.0 == b.0)
            .map(|group| OverlapGroup {
                depths: group[0].0,
                targets: group.iter().map(|(_, target)| (*target).clone()).collect(),
            })
            .collect()
    }
}

impl Walk {
    fn new(live: &SlotSet) -> Self {
        let words = live.words();
        Self {
            alive: words.repeat(TIERS),
            words: words.len(),
            ended: vec![[0; TIERS]; words.len() * 64],
        }
    }

    /// Takes one more block. Whether any run goes on through it; if not, all have ended at `depth`.
    fn step(&mut self, depth: u32, holders: &Holders) -> bool {
        let mut any = 0;
        for word in 0..self.words {
            let mut holding = 0;
            for (place, tier) in [Tier::Gpu, Tier::Host, Tier::Disk].into_iter().enumerate() {
                holding |= holders.in_tier(tier).word(word);
                let alive = &mut self.alive[place * self.words + word];
                let mut lost = *alive & !holding;
                *alive &= holding;
                any |= *alive;
                while lost != 0 {
                    let slot = word * 64 + lost.trailing_zeros() as usize;
                    self.ended[slot][place] = depth;
                    lost &= lost - 1;
                }
            }
        }
        any != 0
    }

    /// Ends what still goes on at `depth`, and answers every slot's runs.
    fn finish(mut self, depth: u32) -> Vec<[u32; TIERS]> {
        self.step(depth, &Holders::default());
        self.ended
    }
}
