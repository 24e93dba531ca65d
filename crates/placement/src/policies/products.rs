//! Policies that are one formula.

use super::field::{Field, Pick, active, held, pending};
use crate::draw::Draw;
use crate::policy::parameters;

parameters! {
    /// Of a published policy that subtracts load from hits.
    LoadAware {
        /// Of load, against the share that is held.
        beta = 1.0 in 0.0..=1000.0;
    }
}

/// `argmax m`: follows overlap and nothing else. All go to one target where all begin with the same block.
pub(super) fn max_overlap(field: &Field<'_>, draw: &mut Draw) -> Pick {
    field.least(field.weigh(|it| -held(it)), draw)
}

/// LMetric: `argmin miss (A + 1)`.
pub(super) fn lmetric(field: &Field<'_>, draw: &mut Draw) -> Pick {
    field.least(field.weigh(|it| field.miss(it) * (active(it) + 1.0)), draw)
}

/// Least prefill work left: `argmin P + miss`.
pub(super) fn lpwl(field: &Field<'_>, draw: &mut Draw) -> Pick {
    field.least(field.weigh(|it| pending(it) + field.miss(it)), draw)
}

/// The lock-step rule of tpu-inference (#3315): `argmin (P + miss, A)`, so that the rank for which all wait has least.
///
/// Its third key, the output still to come of what runs there, is left out: a router does not know it.
pub(super) fn minmax(field: &Field<'_>, draw: &mut Draw) -> Pick {
    let weighed = field.weigh(|it| pending(it) + field.miss(it));
    let work = |at: usize| weighed[at];
    let least = (0..weighed.len()).map(work).fold(f64::INFINITY, f64::min);
    let equal = field.open.iter().zip(&weighed);
    let equal = equal.filter(|(_, work)| **work <= least);
    let fewest = equal.map(|(it, _)| it.active).min();
    let is_least =
        |it: &crate::Candidate| Some(it.active) == fewest && pending(it) + field.miss(it) <= least;
    field.least_of(weighed.clone(), is_least, draw)
}

/// `argmax m / L - beta (A - mean A) / max(1, mean A)`.
pub(super) fn load_aware(field: &Field<'_>, numbers: &LoadAware, draw: &mut Draw) -> Pick {
    let mean = field.mean(active);
    let weight = |busy: f64, share: f64| numbers.beta * (busy - mean) / mean.max(1.0) - share;
    field.least(field.weigh(|it| weight(active(it), field.share(it))), draw)
}
