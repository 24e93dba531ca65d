//! What a target holds, summed up.

use domain::SequenceHash;

use crate::PrefixIndex;
use crate::arena::word;
use crate::rank::Rank;

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
