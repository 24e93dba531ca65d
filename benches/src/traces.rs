//! Traces in a closed loop: each request is looked up, then what its target announces goes to the lane; the
//! clock stops when the last event is applied.
//!
//! Lookups wait for a lane that falls behind. Where they do not, as in Dynamo's own benchmark, a structure that
//! applies slowly is asked while it is nearly empty, and answers fast; that is measured too, apart.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::{Ticks, percentile};
use crate::event::Naming;
use crate::report::Row;
use crate::rounds::{Rounds, turns};
use crate::settings::Settings;
use crate::structures::{How, Queue};
use crate::trace::{self, Replay};

/// Targets that the requests are spread over.
const TARGETS: u32 = 64;
/// Block operations wanted at least: a shorter trace is played in so many copies.
const LEAST_BLOCKS: usize = 4_000_000;
/// Copies at most.
const MOST_COPIES: u64 = 4;
/// Events that may wait while the next request is looked up.
const BACKLOG: usize = 256;
/// Requests, from the end, that are asked again once all is applied.
const ASKED_AGAIN: usize = 4_000;

/// Every trace that `settings` name. One that cannot be read is skipped, and said to be.
pub fn measure(settings: &Settings, note: &dyn Fn(&str)) -> Vec<Row> {
    let shipped = [Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/rankway/traces/mooncake_first_1000.jsonl")];
    let paths: &[PathBuf] = match settings.traces.as_slice() {
        [] => &shipped,
        named => named,
    };
    let mut rows = Vec::new();
    for path in paths {
        let lines = match trace::read(path) {
            Ok(lines) => lines,
            Err(why) => {
                note(&format!("skipped the trace {}: {why:#}", path.display()));
                continue;
            }
        };
        let name = path
            .file_stem()
            .map_or("?".into(), |it| it.to_string_lossy());
        let name = name.trim_end_matches("_trace").replace('_', " ");
        let replay = sized(settings, &lines, settings.engine_hashes);
        note(&format!(
            "trace {name}: {} block operations",
            replay.blocks()
        ));
        rows.extend(play(settings, &name, &replay));
    }
    rows
}

fn sized(settings: &Settings, lines: &[trace::Line], naming: Naming) -> Replay {
    let once = Replay::new(lines, 1, TARGETS, naming);
    let copies = (LEAST_BLOCKS / once.blocks().max(1)) as u64 + 1;
    match copies.min(MOST_COPIES) {
        copies if copies == 1 || settings.quick => once,
        copies => Replay::new(lines, copies, TARGETS, naming),
    }
}

fn play(settings: &Settings, name: &str, replay: &Replay) -> Vec<Row> {
    let ticks = Ticks::calibrate();
    let mut rounds = Rounds::default();
    let (blocks, requests) = (replay.blocks() as f64, &replay.requests);
    for round in 0..settings.rounds() {
        for kind in turns(&settings.kinds(), round) {
            let mut note = |what: &str, unit, figure| {
                rounds.note(&format!("trace {name}{what}"), unit, kind, figure);
            };
            let mut structure = kind.start(TARGETS, Queue::Unbounded);
            structure.prepare(requests);
            let (mixed, _) = structure.mixed(&replay.events, usize::MAX, ticks);
            let per_block = |it: Duration| it.as_nanos() as f64 / blocks;
            note(
                ", not waiting, until issued",
                "ns/block",
                per_block(mixed.issued),
            );
            note(
                ", not waiting, until applied",
                "ns/block",
                per_block(mixed.wall),
            );
            drop(structure);
            let mut structure = kind.start(TARGETS, Queue::Unbounded);
            structure.prepare(requests);
            let (mixed, mut times) = structure.mixed(&replay.events, BACKLOG, ticks);
            note("", "CPU ns/block", per_block(mixed.cpu));
            note(", until applied", "ns/block", per_block(mixed.wall));
            note(", lookup p99", "ns", percentile(&mut times, 99));
            let last = &requests[requests.len().saturating_sub(ASKED_AGAIN)..];
            structure.prepare(last);
            let cpu = structure.pass(How::Native).as_nanos() as f64;
            note(", lookup at the end", "CPU ns", cpu / last.len() as f64);
            if round == 0 {
                let right = |at: &usize| {
                    structure.depths(*at, How::Native, TARGETS) == replay.right(&last[*at])
                };
                let wrong = last.len() - (0..last.len()).filter(right).count();
                let share = 100.0 * wrong as f64 / last.len() as f64;
                note(", wrong answers at the end", "%", share);
            }
        }
    }
    rounds.rows(TARGETS, mean_blocks(replay))
}

fn mean_blocks(replay: &Replay) -> usize {
    let asked: usize = replay.requests.iter().map(|it| it.blocks()).sum();
    asked / replay.requests.len().max(1)
}
