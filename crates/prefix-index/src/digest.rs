//! What a target holds, summed up.

use std::ops::Range;

use domain::SequenceHash;

use crate::PrefixIndex;
use crate::arena::word;
use crate::forest::Forest;
use crate::holders::Hold;
use crate::rank::Rank;
use crate::run::{Tiers, View};

impl PrefixIndex {
    /// The wrapping sum of the digest terms of the blocks that `rank` holds.
    pub(crate) fn digest(&self, rank: &Rank) -> u64 {
        let forest = &self.forest;
        let mut digest = 0_u64;
        for run in forest.held_by(rank.slot, rank.runs.clone()) {
            let view = forest.view(run);
            let sequences = view.sequences(&forest.board.lines);
            let sequences = sequences.expect("the writer's own");
            for (range, _) in forest.stretches(&view, rank.slot) {
                for offset in range {
                    let sequence = SequenceHash::new(word(sequences, offset));
                    digest = digest.wrapping_add(sequence.digest_term());
                }
            }
        }
        digest
    }
}

impl Forest {
    /// The stretches of a run that `slot` holds, and in which tiers.
    pub(crate) fn stretches(&self, view: &View, slot: u32) -> Vec<(Range<usize>, Tiers)> {
        match self.hold_of(view, slot) {
            Hold::Nothing => Vec::new(),
            Hold::Prefix(cut) => vec![(0..view.len.min(cut as usize), Tiers::GPU)],
            Hold::Parts(parts) => {
                let stretch =
                    |it: &crate::run::Part| (it.start as usize..it.end as usize, it.tiers);
                parts.iter().map(stretch).collect()
            }
        }
    }
}
