//! Policies that look at no cache.

use super::field::{Field, Pick, active, pending};
use crate::choose::{Place, Reason};
use crate::draw::Draw;
use crate::snapshot::Candidate;

/// Each worker in turn.
pub(super) fn round_robin(field: &Field<'_>) -> Pick {
    let workers = workers(field);
    let at = in_turn(workers.len(), field.turn);
    drawn(workers, at, Reason::Turn)
}

/// Any worker.
pub(super) fn random(field: &Field<'_>, draw: &mut Draw) -> Pick {
    let workers = workers(field);
    let at = draw.below(workers.len());
    drawn(workers, at, Reason::Drawn)
}

/// Each rank of each worker in turn.
pub(super) fn target_round_robin(field: &Field<'_>) -> Pick {
    let at = in_turn(field.open.len(), field.turn);
    field.pick(at, Reason::Turn, Vec::new())
}

/// The less busy of two ranks drawn, by `A`; the first drawn of two that are equal.
pub(super) fn power_of_two(field: &Field<'_>, draw: &mut Draw) -> Pick {
    let weighed = field.weigh(active);
    let (first, second) = draw.two_below(weighed.len());
    let less = if weighed[second] < weighed[first] {
        second
    } else {
        first
    };
    field.pick(less, Reason::LessBusyOfTwo, weighed)
}

/// `argmin P`.
pub(super) fn least_load(field: &Field<'_>, draw: &mut Draw) -> Pick {
    field.least(field.weigh(pending), draw)
}

/// `argmin 4 waiting + running`, as vLLM's own balancer between its ranks has it, by the engine's last gauge. Where none
/// is believed all that is active counts as running.
///
/// The balancer also adds what it has sent since the gauge; it is left out, as it is in its description.
pub(super) fn vllm_dplb(field: &Field<'_>, draw: &mut Draw) -> Pick {
    let weight = |it: &Candidate| match &it.gauge {
        Some(gauge) => 4.0 * f64::from(gauge.waiting) + f64::from(gauge.running),
        None => active(it),
    };
    field.least(field.weigh(weight), draw)
}

fn workers(field: &Field<'_>) -> Vec<Place> {
    let places = field.open.iter().map(|candidate| Place::Worker {
        worker: candidate.target.worker.clone(),
        epoch: candidate.target.epoch,
    });
    let mut workers: Vec<Place> = places.collect();
    workers.dedup();
    workers
}

fn drawn(mut workers: Vec<Place>, at: usize, reason: Reason) -> Pick {
    Pick {
        place: workers.swap_remove(at),
        reason,
        weighed: Vec::new(),
    }
}

/// Whose turn it is of `count`.
pub(super) fn in_turn(count: usize, turn: u64) -> usize {
    let count = u64::try_from(count).expect("a usize fits");
    usize::try_from(turn % count).expect("below a usize")
}
