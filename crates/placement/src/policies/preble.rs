//! Preble's E2: exploit a prefix that is worth more than what is missing, else explore.

use super::field::{Field, Pick, held};
use crate::choose::Reason;
use crate::draw::Draw;
use crate::policy::parameters;
use crate::snapshot::Candidate;

parameters! {
    /// Of Preble's E2. The default threshold is ours.
    PrebleE2 {
        /// The busiest of the window gives work to the least busy beyond so many times its load; 0 for never.
        threshold = 2.0 in 0.0..=1000.0;
    }
}

/// Holds somebody more of the request than is missing: whoever holds most, of equals the lighter in `H`; is that the
/// heaviest of all, with `H > threshold min H`, the lightest instead. Else `argmin H + M + miss`.
///
/// `H` is prefill assigned in the window, and `M` the tokens pushed out of the cache by those to be
/// computed, times how likely they are wanted again: one likelihood of all blocks, where the source has one of each tree
/// node. Left out: the answers in `H`, whose length is not known when they are assigned; that a prefix whose wait doubles is copied, and that a whole prefix is handed over at once.
pub(super) fn e2(field: &Field<'_>, numbers: &PrebleE2, draw: &mut Draw) -> Pick {
    let longest = field.most(held);
    if longest <= (field.isl() - longest).max(0.0) {
        return field.least(field.weigh(|it| explored(field, it)), draw);
    }
    let weighed = field.weigh(assigned);
    let (most, fewest) = (field.most(assigned), field.fewest(assigned));
    let holds_most = |it: &Candidate| held(it) >= longest;
    let exploited = field.least_of(weighed.clone(), holds_most, draw);
    let at = exploited.place.target().and_then(|it| field.find(it));
    let load = at.map_or(0.0, |at| weighed[at]);
    let is_heaviest = load >= most && most > fewest;
    if numbers.threshold > 0.0 && is_heaviest && most > numbers.threshold * fewest {
        let lightest = field.least(weighed, draw);
        return Pick {
            reason: Reason::Overflow,
            ..lightest
        };
    }
    exploited
}

fn explored(field: &Field<'_>, candidate: &Candidate) -> f64 {
    let miss = field.miss(candidate);
    let evicted = candidate.capacity.map_or(0.0, |capacity| {
        let over = candidate.resident.as_f64() + miss - capacity.as_f64();
        over.clamp(0.0, miss)
    });
    assigned(candidate) + evicted * field.reuse + miss
}

const fn assigned(candidate: &Candidate) -> f64 {
    candidate.tally.assigned
}
