//! Mooncake's Conductor.

use super::field::{Field, Pick, held, pending};
use crate::draw::Draw;
use crate::policy::parameters;
use crate::snapshot::Candidate;

parameters! {
    /// Of Mooncake's Conductor. The source sets neither; with the defaults nothing is fetched.
    MooncakeConductor {
        /// Blocks are fetched where somebody holds more than so many times what a target holds itself.
        threshold = 2.0 in 1.0..=1000.0;
        /// Tokens a second that can be fetched from another target; 0 where none can.
        fetch_rate = 0.0 in 0.0..=1e12;
    }
}

/// `argmin transfer + P / rate + miss / rate`, in seconds. Where somebody holds more than `threshold` times what the target
/// holds, the difference is fetched, `transfer` is the time it takes, and only what nobody holds is missing.
///
/// The fetch is the engine's to do: leave its rate at 0 where engines cannot. Left out: that a request is refused when the
/// least is above the promised time, which is admission's, and that hot blocks come to be held by many, which follows from
/// fetching.
pub(super) fn conductor(field: &Field<'_>, numbers: &MooncakeConductor, draw: &mut Draw) -> Pick {
    let best = field.most(held).min(field.isl());
    let weight = |it: &Candidate| {
        let own = held(it).min(field.isl());
        let fetches = numbers.fetch_rate > 0.0 && best > numbers.threshold * own;
        let (fetched, miss) = match fetches {
            true => (best - own, field.isl() - best),
            false => (0.0, field.isl() - own),
        };
        let transfer = if fetches {
            fetched / numbers.fetch_rate
        } else {
            0.0
        };
        transfer + (pending(it) + miss) / it.prefill_rate
    };
    field.least(field.weigh(weight), draw)
}
