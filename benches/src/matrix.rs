//! The cases of the synthetic fleets.

use crate::clock::{Ticks, percentile};
use crate::contest::{Contestant, Kind};
use crate::event::{Event, Naming, Request};
use crate::fleet::{Asked, EVICTED_BLOCKS, Fleet, Shape};
use crate::report::Row;
use crate::rounds::{Rounds, turns};
use crate::settings::{Part, Settings};
use crate::structures::{How, Queue};

/// The seed of everything here.
const SEED: u64 = 2026;
/// Events that may wait beside lookups.
const BACKLOG: usize = 256;
/// Events ahead of the one whose appearance is timed.
const AHEAD: usize = 16;
/// Updates whose appearance is timed in a round.
const PROBES: usize = 500;
/// The depth at which it is.
const PROBED_DEPTH: usize = 512;

/// Every part of the matrix that `settings` ask for.
pub fn measure(settings: &Settings, note: &dyn Fn(&str)) -> Vec<Row> {
    let mut rows = Vec::new();
    let ticks = Ticks::calibrate();
    for shape in settings.shapes() {
        let Shape { targets, depth, .. } = shape;
        note(&format!("{targets} targets x {depth} blocks"));
        let mut rounds = Rounds::default();
        if settings.does(Part::Store) {
            store(settings, shape, settings.engine_hashes, "", &mut rounds);
            if settings.engine_hashes == Naming::Canonical {
                store(settings, shape, Naming::Foreign, ", foreign", &mut rounds);
            }
        }
        if [Part::Lookup, Part::Mixed, Part::Visible]
            .into_iter()
            .any(|it| settings.does(it))
        {
            on_a_full_index(settings, shape, ticks, &mut rounds);
        }
        rows.extend(rounds.rows(targets, depth));
    }
    rows
}

/// CPU time of the lane for each stored and each evicted block. The first evictions leave about as many blocks that
/// nobody holds as ours keeps in their places; with the further ones, as many go for good as come.
fn store(settings: &Settings, shape: Shape, naming: Naming, suffix: &str, rounds: &mut Rounds) {
    let fleet = Fleet::new(shape, naming, SEED);
    let stores: Vec<Event> = fleet.stores(SEED).collect();
    let removals: Vec<Event> = fleet.removals(SEED).collect();
    let further: Vec<Event> = fleet.further_removals(SEED).collect();
    let cases = [
        ("store", &stores),
        ("remove", &removals),
        ("remove, reclaiming", &further),
    ];
    for round in 0..settings.rounds() {
        for kind in turns(&settings.kinds(), round) {
            let mut structure = kind.start(shape.targets, Queue::Unbounded);
            for (case, events) in cases {
                let blocks: usize = events.iter().map(Event::blocks).sum();
                let cpu = structure.apply(events).as_nanos() as f64;
                let case = format!("{case}{suffix}");
                rounds.note(&case, "CPU ns/block", kind, cpu / blocks as f64);
            }
        }
    }
}

struct Full {
    structures: Vec<(Kind, Box<dyn Contestant>)>,
    fleet: Fleet,
    asked: Vec<Asked>,
}

fn on_a_full_index(settings: &Settings, shape: Shape, ticks: Ticks, rounds: &mut Rounds) {
    let fleet = Fleet::new(shape, settings.engine_hashes, SEED);
    let stores: Vec<Event> = fleet.stores(SEED).collect();
    let asked = fleet.requests(settings.fewer(lookups(shape.depth)), SEED + 2);
    let requests: Vec<Request> = asked.iter().map(|it| it.request.clone()).collect();
    let start = |kind: Kind| {
        let mut structure = kind.start(shape.targets, Queue::Unbounded);
        structure.apply(&stores);
        structure.prepare(&requests);
        (kind, structure)
    };
    let structures = settings.kinds().into_iter().map(start).collect();
    let mut full = Full {
        structures,
        fleet,
        asked,
    };
    drop(stores);
    if settings.does(Part::Lookup) {
        full.wrong(shape, rounds);
        for round in 0..settings.rounds() {
            full.lookups(round, ticks, rounds);
        }
    }
    if settings.does(Part::Mixed) {
        for (case, reads) in [("mixed 1:1", 1), ("mixed 10:1", 10)] {
            for round in 0..settings.rounds() {
                full.mixed((case, reads), round, ticks, rounds);
            }
        }
    }
    if settings.does(Part::Visible) && shape.depth == PROBED_DEPTH {
        for round in 0..settings.rounds() {
            full.visible(round, settings.fewer(PROBES), rounds);
        }
    }
}

/// Lookups of one pass: the deeper the fewer.
fn lookups(depth: usize) -> usize {
    match depth {
        ..256 => 20_000,
        256..2048 => 4_000,
        _ => 1_000,
    }
}

impl Full {
    /// How many answers are not what was stored.
    fn wrong(&mut self, shape: Shape, rounds: &mut Rounds) {
        let number = self.asked.len().min(500);
        for (kind, structure) in &mut self.structures {
            let mut wrong = 0;
            for (at, asked) in self.asked[..number].iter().enumerate() {
                let right = self.fleet.right(asked);
                for how in [How::Native, How::BySequence, How::Scores] {
                    wrong += usize::from(structure.depths(at, how, shape.targets) != right);
                }
            }
            let share = 100.0 * wrong as f64 / (3 * number) as f64;
            rounds.note("wrong answers, full index", "%", *kind, share);
        }
    }

    fn lookups(&mut self, round: usize, ticks: Ticks, rounds: &mut Rounds) {
        let number = self.asked.len() as f64;
        let hows = [
            (How::Native, "lookup"),
            (How::BySequence, "lookup by sequence hashes"),
            (How::Scores, "lookup, hash map"),
        ];
        for (how, case) in hows {
            for at in turns(&indices(&self.structures), round) {
                let (kind, structure) = &mut self.structures[at];
                let cpu = structure.pass(how).as_nanos() as f64;
                rounds.note(case, "CPU ns", *kind, cpu / number);
                let mut times = structure.times(how, ticks);
                for percent in [50, 99] {
                    let time = percentile(&mut times, percent);
                    rounds.note(&format!("{case}, p{percent}"), "ns", *kind, time);
                }
            }
        }
    }

    /// Reads and writes in proportion, counted in blocks; what both threads take for a block.
    fn mixed(
        &mut self,
        (case, reads): (&str, usize),
        round: usize,
        ticks: Ticks,
        rounds: &mut Rounds,
    ) {
        let read: usize = self.asked.iter().map(|it| it.request.blocks()).sum();
        let writes = read / reads / EVICTED_BLOCKS;
        let mut events = self.fleet.churn(writes, SEED + round as u64);
        let written: usize = events.iter().map(Event::blocks).sum();
        let mut groups: Vec<Vec<Event>> = Vec::new();
        for after in (1..=self.asked.len()).rev() {
            let kept = events.len() * (after - 1) / after;
            groups.push(events.split_off(kept));
        }
        groups.reverse();
        for at in turns(&indices(&self.structures), round) {
            let (kind, structure) = &mut self.structures[at];
            let (mixed, mut times) = structure.mixed(&groups, BACKLOG, ticks);
            let cpu = mixed.cpu.as_nanos() as f64 / (read + written) as f64;
            rounds.note(case, "CPU ns/block", *kind, cpu);
            let slowest = percentile(&mut times, 99);
            rounds.note(&format!("{case}, lookup p99"), "ns", *kind, slowest);
        }
    }

    fn visible(&mut self, round: usize, probes: usize, rounds: &mut Rounds) {
        for at in turns(&indices(&self.structures), round) {
            let (kind, structure) = &mut self.structures[at];
            let mut times = structure.visible(&self.fleet, AHEAD, probes);
            for percent in [50, 99] {
                let time = percentile(&mut times, percent) / 1e3;
                rounds.note(&format!("update visible, p{percent}"), "us", *kind, time);
            }
        }
    }
}

fn indices<T>(all: &[T]) -> Vec<usize> {
    (0..all.len()).collect()
}
