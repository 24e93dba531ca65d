//! The cases that are measured in processes of their own.

use anyhow::Context as _;

use crate::child::{Answer, Measure, Order, has_callgrind};
use crate::contest::Kind;
use crate::event::Naming;
use crate::fleet::{Fleet, Shape};
use crate::report::Row;
use crate::rounds::Rounds;
use crate::scratch::Scratch;
use crate::settings::{Part, Settings};

/// Memberships of the smaller of two fleets whose lookups are compared, under callgrind.
const GROWTH_FROM: usize = 250_000;
/// Memberships of the fleet whose stores are counted, under callgrind.
const COUNTED: usize = 250_000;

/// Ratios of CPU time that another run may turn around.
const CLOSE: std::ops::Range<f64> = 0.75..1.3;

/// Bytes for each membership. Once: a process hardly differs from the next.
pub fn memory(settings: &Settings, note: &dyn Fn(&str)) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for shape in settings.shapes() {
        note(&format!(
            "memory: {} targets x {} blocks",
            shape.targets, shape.depth
        ));
        let mut rounds = Rounds::default();
        for naming in [Naming::Foreign, Naming::Canonical, Naming::PerTarget] {
            for kind in settings.kinds() {
                let answer = Order::new(Measure::Memory, kind, naming, shape).delegate()?;
                let case = format!("memory, {}", naming.text());
                rounds.note(&case, "bytes/membership", kind, answer.total / answer.of);
            }
        }
        rows.extend(rounds.rows(shape.targets, shape.depth));
    }
    Ok(rows)
}

/// How much more a lookup of ours costs when memberships double: in instructions where valgrind is at hand,
/// else in CPU time.
pub fn growth(settings: &Settings, note: &dyn Fn(&str)) -> anyhow::Result<Vec<Row>> {
    if !settings.kinds().contains(&Kind::Ours) {
        return Ok(Vec::new());
    }
    let counter = Counter::new(note)?;
    let mut rows = Vec::new();
    for shape in settings.shapes() {
        // A fleet below its least size would not double.
        let from = settings.fewer(GROWTH_FROM).max(Fleet::least(shape));
        note(&format!(
            "growth: {} targets x {} blocks",
            shape.targets, shape.depth
        ));
        let mut rounds = Rounds::default();
        for (measure, case) in [
            (Measure::Lookups, "growth of a lookup"),
            (
                Measure::LookupsBySequence,
                "growth of a lookup by sequence hashes",
            ),
        ] {
            let cost = |memberships| {
                let larger = Shape {
                    memberships,
                    ..shape
                };
                let order = Order::new(measure, Kind::Ours, Naming::Canonical, larger);
                counter.take(&order).map(|it| it.total / it.of)
            };
            let growth = cost(2 * from)? / cost(from)?;
            rounds.note(case, counter.ratio_unit(), Kind::Ours, growth);
        }
        rows.extend(rounds.rows(shape.targets, shape.depth));
    }
    Ok(rows)
}

/// Instructions of lookups, stores and removals: no noise of the machine is in them, but no cache misses either.
/// Of every fleet, if they were asked for, else of those in which a ratio among `rows` is close.
pub fn instructions(
    settings: &Settings,
    rows: &[Row],
    note: &dyn Fn(&str),
) -> anyhow::Result<Vec<Row>> {
    let asked = settings.only.contains(&Part::Instructions);
    let counter = Counter::new(note)?;
    let mut counted = Vec::new();
    for shape in settings.shapes() {
        let close =
            |it: &Row| (it.targets, it.depth) == (shape.targets, shape.depth) && is_close(it);
        if asked || rows.iter().any(close) {
            let Shape { targets, depth, .. } = shape;
            note(&format!("instructions: {targets} targets x {depth} blocks"));
            counted.extend(count(settings, shape, &counter)?);
        }
    }
    Ok(counted)
}

/// Whether the noise of the clock may decide between ours and a peer.
fn is_close(row: &Row) -> bool {
    let ratios = Kind::ALL.into_iter().filter(|it| *it != Kind::Ours);
    ["lookup", "store", "remove"].contains(&&*row.case)
        && ratios
            .filter_map(|it| row.ratio(it))
            .any(|it| CLOSE.contains(&it))
}

fn count(settings: &Settings, shape: Shape, counter: &Counter) -> anyhow::Result<Vec<Row>> {
    let shape = Shape {
        memberships: settings.fewer(COUNTED),
        ..shape
    };
    let mut rounds = Rounds::default();
    for kind in settings.kinds() {
        let take =
            |measure| counter.take(&Order::new(measure, kind, settings.engine_hashes, shape));
        let (lookups, stores) = (take(Measure::Lookups)?, take(Measure::Stores)?);
        let both = take(Measure::StoresAndRemovals)?;
        let removals = Answer {
            total: both.total - stores.total,
            of: both.of - stores.of,
        };
        for (case, answer) in [
            ("lookup, counted", lookups),
            ("store, counted", stores),
            ("remove, counted", removals),
        ] {
            rounds.note(case, counter.unit(), kind, answer.total / answer.of);
        }
    }
    Ok(rounds.rows(shape.targets, shape.depth))
}

/// Callgrind, or a clock where it is not at hand.
struct Counter {
    scratch: Option<Scratch>,
}

impl Counter {
    fn new(note: &dyn Fn(&str)) -> anyhow::Result<Self> {
        if !has_callgrind() {
            note("valgrind is not here: CPU time stands in for instructions");
            return Ok(Self { scratch: None });
        }
        let scratch = Scratch::new("callgrind").context("make a folder for callgrind's counts")?;
        Ok(Self {
            scratch: Some(scratch),
        })
    }

    fn take(&self, order: &Order) -> anyhow::Result<Answer> {
        match &self.scratch {
            Some(scratch) => order.count(scratch.path()),
            None => order.delegate(),
        }
    }

    fn unit(&self) -> &'static str {
        match self.scratch {
            Some(_) => "instructions, of a lookup or a block",
            None => "CPU ns, of a lookup or a block",
        }
    }

    fn ratio_unit(&self) -> &'static str {
        match self.scratch {
            Some(_) => "instructions, twice the memberships over once",
            None => "CPU time, twice the memberships over once",
        }
    }
}

/// Which structures there are to measure, for messages.
pub fn names(kinds: &[Kind]) -> String {
    kinds
        .iter()
        .map(|it| it.name())
        .collect::<Vec<_>>()
        .join(", ")
}
