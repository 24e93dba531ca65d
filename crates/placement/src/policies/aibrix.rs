//! AIBrix' prefix-cache policy.

use super::field::{Field, Pick, active, held};
use crate::draw::Draw;
use crate::policy::parameters;
use crate::snapshot::Candidate;

parameters! {
    /// Of AIBrix' prefix-cache policy.
    Aibrix {
        /// Loads further apart than this are out of balance.
        spread = 16.0 in 0.0..=1_000_000.0;
        /// Standard deviations above the mean load that one may have.
        sigmas = 2.0 in 0.0..=1000.0;
    }
}

/// `max A - min A > spread`: `argmin A`. Else the highest match with `A <= mean A + sigmas sd A`, of equals that with
/// fewest requests.
pub(super) fn aibrix(field: &Field<'_>, numbers: &Aibrix, draw: &mut Draw) -> Pick {
    if field.most(active) - field.fewest(active) > numbers.spread {
        return field.least(field.weigh(active), draw);
    }
    let mean = field.mean(active);
    let variance = field.mean(|it| (active(it) - mean).powi(2));
    let limit = mean + numbers.sigmas * variance.sqrt();
    let may = |it: &Candidate| active(it) <= limit;
    let allowed = || field.open.iter().filter(|it| may(it));
    let longest = allowed().map(|it| it.held.disk).max();
    let best = || allowed().filter(|it| Some(it.held.disk) == longest);
    let fewest = best().map(|it| it.active).min();
    let is_best =
        |it: &Candidate| may(it) && Some(it.held.disk) == longest && Some(it.active) == fewest;
    field.least_of(field.weigh(|it| -held(it)), is_best, draw)
}
