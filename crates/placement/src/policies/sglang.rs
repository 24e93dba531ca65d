//! SGLang's router.

use super::field::{Field, Pick, active, held};
use crate::draw::Draw;
use crate::policy::parameters;

parameters! {
    /// Of SGLang's cache-aware policy.
    SglCacheAware {
        /// The share of a request that has to be held somewhere for it to count.
        threshold = 0.5 in 0.0..=1.0;
        /// Loads this far apart are out of balance,
        abs = 16.0 in 0.0..=1_000_000.0;
        /// where the largest is also this many times the smallest.
        rel = 1.5 in 1.0..=1000.0;
    }
}

parameters! {
    /// Of SGLang's cache-aware policy with locality kept among the least busy (PR 32195).
    SglNearMin {
        /// The share of a request that has to be held somewhere for it to count.
        threshold = 0.5 in 0.0..=1.0;
        /// Loads this far apart are out of balance, and one this close to the smallest is near it,
        abs = 16.0 in 0.0..=1_000_000.0;
        /// where the largest is also this many times the smallest.
        rel = 1.5 in 1.0..=1000.0;
    }
}

/// Out of balance, `max A - min A > abs` and `max A > rel min A`: `argmin A`, which drops all locality. In balance:
/// `argmax m` if `m / L > threshold`, else `argmin A`. The recipes set 0.3, 2 and 1.1.
///
/// SGLang guesses `m` from a tree of texts it sent; here it is what the index says.
pub(super) fn cache_aware(field: &Field<'_>, numbers: &SglCacheAware, draw: &mut Draw) -> Pick {
    match is_out_of_balance(field, numbers.abs, numbers.rel) {
        true => field.least(field.weigh(active), draw),
        false => in_balance(field, numbers.threshold, draw),
    }
}

/// The same, but out of balance: among those with `A <= min A + abs` the one with the longest prefix, if any holds
/// something, else `argmin A`.
pub(super) fn near_min(field: &Field<'_>, numbers: &SglNearMin, draw: &mut Draw) -> Pick {
    if !is_out_of_balance(field, numbers.abs, numbers.rel) {
        return in_balance(field, numbers.threshold, draw);
    }
    let limit = field.fewest(active) + numbers.abs;
    let is_near = |it: &crate::Candidate| active(it) <= limit;
    match field.open.iter().any(|it| is_near(it) && held(it) > 0.0) {
        true => field.least_of(field.weigh(|it| -held(it)), is_near, draw),
        false => field.least(field.weigh(active), draw),
    }
}

fn is_out_of_balance(field: &Field<'_>, abs: f64, rel: f64) -> bool {
    let (most, fewest) = (field.most(active), field.fewest(active));
    most - fewest > abs && most > rel * fewest
}

fn in_balance(field: &Field<'_>, threshold: f64, draw: &mut Draw) -> Pick {
    match field.most(|it| field.share(it)) > threshold {
        true => field.least(field.weigh(|it| -held(it)), draw),
        false => field.least(field.weigh(active), draw),
    }
}
