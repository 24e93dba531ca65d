//! SMetric: affinity for later turns while a bound on waiting is kept.

use super::field::{Field, Pick, active, held, pending};
use crate::choose::Reason;
use crate::draw::Draw;
use crate::policy::parameters;
use crate::snapshot::Candidate;

parameters! {
    /// Of SMetric. The source fits `c1` and `c2` to the machine; the other defaults are ours.
    Smetric {
        /// Cost of a token to compute.
        c1 = 1.0 in 0.0..=1000.0;
        /// Cost of a token to compute, for each token before it.
        c2 = 0.0 in 0.0..=1.0;
        /// The share of what a later turn is expected to find that has to be there.
        rho = 0.5 in 0.0..=1.0;
        /// How much of the bound on waiting may be used up.
        slack = 1.0 in 0.0..=1000.0;
        /// Seconds to the first token that are promised.
        slo = 10.0 in 0.0..=100_000.0;
        /// Above 0, the same ranks decode, and work weighs more where more requests are.
        colocated = 1.0 in 0.0..=1.0;
    }
}

/// `q = P + c1 n + c2 n (L - n / 2)` with `n = miss`. A later turn goes to whom holds most, if that is more than `rho` of
/// the conversation's last prompt and `q / rate <= slack slo` there, or nowhere. All others: `argmin q`, times the
/// requests there with this one where ranks also decode.
pub(super) fn smetric(field: &Field<'_>, numbers: &Smetric, draw: &mut Draw) -> Pick {
    let isl = field.isl();
    let queue = |it: &Candidate| {
        let miss = field.miss(it);
        pending(it) + numbers.c1 * miss + numbers.c2 * miss * (isl - miss / 2.0)
    };
    let in_time = |it: &Candidate| queue(it) / it.prefill_rate <= numbers.slack * numbers.slo;
    let weight = |it: &Candidate| match numbers.colocated > 0.0 {
        true => queue(it) * (active(it) + 1.0),
        false => queue(it),
    };
    let weighed = field.weigh(weight);
    let Some(stuck) = field.request.stuck.as_ref().filter(|it| it.turns > 0) else {
        return field.least(weighed, draw);
    };
    let longest = field.most(held);
    let soonest = field.open.iter().enumerate();
    let best = soonest
        .filter(|(_, it)| held(it) >= longest)
        .min_by(|one, other| weighed[one.0].total_cmp(&weighed[other.0]));
    let nobody = !field.open.iter().any(|it| in_time(it));
    match best.filter(|_| longest > numbers.rho * stuck.isl.as_f64()) {
        Some((at, it)) if nobody || in_time(it) => field.pick(at, Reason::Stuck, weighed),
        _ => field.least(weighed, draw),
    }
}
