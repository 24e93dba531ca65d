//! Policies that look at no cache.

use crate::choose::{Place, Reason};
use crate::draw::Draw;
use crate::snapshot::Candidate;

/// Each worker in turn.
pub(crate) fn round_robin(open: &[&Candidate], turn: u64) -> (Place, Reason) {
    let workers = workers(open);
    (in_turn(&workers, turn).clone(), Reason::Turn)
}

/// Any worker.
pub(crate) fn random(open: &[&Candidate], draw: &mut Draw) -> (Place, Reason) {
    let mut workers = workers(open);
    let drawn = draw.below(workers.len());
    (workers.swap_remove(drawn), Reason::Drawn)
}

/// Each rank of each worker in turn.
pub(crate) fn target_round_robin(open: &[&Candidate], turn: u64) -> (Place, Reason) {
    let next = in_turn(open, turn);
    (Place::Target(next.target.clone()), Reason::Turn)
}

/// The less busy of two ranks drawn.
pub(crate) fn power_of_two(open: &[&Candidate], draw: &mut Draw) -> (Place, Reason) {
    let (first, second) = draw.two_below(open.len());
    let (first, second) = (open[first], open[second]);
    let less = if second.active < first.active {
        second
    } else {
        first
    };
    (Place::Target(less.target.clone()), Reason::LessBusyOfTwo)
}

fn workers(open: &[&Candidate]) -> Vec<Place> {
    let places = open.iter().map(|candidate| Place::Worker {
        worker: candidate.target.worker.clone(),
        epoch: candidate.target.epoch,
    });
    let mut workers: Vec<Place> = places.collect();
    workers.dedup();
    workers
}

fn in_turn<T>(items: &[T], turn: u64) -> &T {
    let count = u64::try_from(items.len()).expect("a usize fits");
    let index = usize::try_from(turn % count).expect("below a usize");
    &items[index]
}
