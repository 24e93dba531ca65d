//! Random streams that say which structure is wrong.
//!
//! Chains are drawn from an alphabet of two, so that they share and part all the time. Evictions take leaves
//! only, as engines with a tree do, or any block, as engines with a free list do, whose chains then have holes
//! that may be filled again. No block is stored while it is held, since the structures count copies differently.

use crate::contest::{Contestant, Kind};
use crate::event::{Block, Change, Event, Naming, Request};
use crate::model::Model;
use crate::random::Random;
use crate::structures::{How, Queue};

/// Targets of every stream.
pub const TARGETS: u32 = 12;
/// Blocks of a request at most.
pub const DEPTH: usize = 24;
const STORED_AT_ONCE: usize = 6;
const EVICTED_AT_ONCE: usize = 4;

/// Which blocks are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// Only those without a child.
    Leaves,
    /// Any.
    Anything,
}

/// How often a structure was wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Answers compared.
    pub answers: usize,
    /// Answers in which some target's depth was wrong.
    pub wrong: usize,
    /// Answers in which some target was said to hold more than it does.
    pub claiming: usize,
}

/// Compares the structures of `kinds` with the model over `steps` random events and as many answers.
pub fn verify(
    kinds: &[Kind],
    evicted: Evicted,
    naming: Naming,
    steps: usize,
    seed: u64,
) -> Vec<Verdict> {
    let mut random = Random::new(seed);
    let mut model = Model::default();
    let start = |kind: &Kind| kind.start(TARGETS, Queue::Unbounded);
    let mut structures: Vec<Box<dyn Contestant>> = kinds.iter().map(start).collect();
    let mut verdicts = vec![Verdict::default(); structures.len()];
    for _ in 0..steps {
        let event = draw(&mut random, &model, evicted, naming);
        model.apply(&event);
        let request = path(&mut random);
        let right = model.depths(&request, TARGETS);
        for (structure, verdict) in structures.iter_mut().zip(&mut verdicts) {
            structure.stream(&mut std::iter::once(event.clone()));
            structure.prepare(std::slice::from_ref(&request));
            for how in [How::Native, How::BySequence, How::Scores] {
                let answer = structure.depths(0, how, TARGETS);
                verdict.answers += 1;
                verdict.wrong += usize::from(answer != right);
                verdict.claiming += usize::from(answer.iter().zip(&right).any(|(a, b)| b < a));
            }
        }
    }
    verdicts
}

fn path(random: &mut Random) -> Request {
    let blocks = 1 + random.below(DEPTH);
    Request::new((0..blocks).map(|_| 1 + random.below(2) as u64).collect())
}

fn draw(random: &mut Random, model: &Model, evicted: Evicted, naming: Naming) -> Event {
    let target = random.below(TARGETS as usize) as u32;
    let change = match random.below(100) {
        0 => Change::Cleared,
        1..45 => evict(random, model, evicted, target),
        _ => store(random, model, naming, target),
    };
    Event { target, change }
}

/// The first blocks of a random chain that `target` lacks, after those it holds.
fn store(random: &mut Random, model: &Model, naming: Naming, target: u32) -> Change {
    let request = path(random);
    let held: Vec<u64> = model.names(target).collect();
    let blocks: Vec<Block> = (0..request.blocks())
        .map(|at| Block {
            name: naming.name(target, request.sequence[at]),
            content: request.content[at],
        })
        .collect();
    let is_held = |it: &&Block| held.binary_search(&it.name).is_ok();
    let first = blocks.iter().take_while(is_held).count();
    let missing = blocks[first..].iter().take_while(|it| !is_held(it)).count();
    let number = missing.min(1 + random.below(STORED_AT_ONCE));
    Change::Stored {
        parent: first.checked_sub(1).map(|it| blocks[it].name),
        blocks: blocks[first..first + number].to_vec(),
    }
}

fn evict(random: &mut Random, model: &Model, evicted: Evicted, target: u32) -> Change {
    let mut from = match evicted {
        Evicted::Leaves => model.leaves(target),
        Evicted::Anything => model.names(target).collect(),
    };
    let mut names = Vec::new();
    for _ in 0..1 + random.below(EVICTED_AT_ONCE) {
        if !from.is_empty() {
            names.push(from.swap_remove(random.below(from.len())));
        }
    }
    Change::Removed(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(evicted: Evicted, naming: Naming, exact: &[Kind]) {
        let verdicts = verify(exact, evicted, naming, 400, 7);

        for (kind, verdict) in exact.iter().zip(verdicts) {
            assert_eq!(verdict.answers, 1200, "{kind:?}");
            assert_eq!(verdict.wrong, 0, "{kind:?} {evicted:?} {naming:?}");
        }
    }

    #[test]
    fn everybody_is_right_when_only_leaves_go() {
        check(Evicted::Leaves, Naming::Canonical, &Kind::ALL);
        check(
            Evicted::Leaves,
            Naming::Foreign,
            &[Kind::Ours, Kind::Crtc, Kind::KvIndex],
        );
    }

    #[test]
    fn positional_finds_nothing_where_engines_have_names_of_their_own() {
        let kinds = [Kind::Positional];
        let verdicts = verify(&kinds, Evicted::Leaves, Naming::Foreign, 400, 7);

        assert!(300 < verdicts[0].wrong);
        assert_eq!(verdicts[0].claiming, 0);
    }

    #[test]
    fn ours_and_kv_index_are_right_whatever_goes() {
        check(
            Evicted::Anything,
            Naming::Foreign,
            &[Kind::Ours, Kind::KvIndex],
        );
        check(Evicted::Anything, Naming::PerTarget, &[Kind::Ours]);
    }

    #[test]
    fn a_structure_that_forgets_holes_is_found_out() {
        let verdicts = verify(&[Kind::Crtc], Evicted::Anything, Naming::Canonical, 400, 7);

        assert!(0 < verdicts[0].wrong);
        assert!(0 < verdicts[0].claiming);
    }
}
