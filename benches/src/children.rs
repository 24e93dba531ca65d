//! The cases that are measured in processes of their own.

use anyhow::Context as _;

use crate::child::{Answer, Measure, Order, has_callgrind};
use crate::contest::Kind;
use crate::event::Naming;
use crate::fleet::{Fleet, Shape};
use crate::report::Row;
use crate::rounds::Rounds;
use crate::scratch::Scratch;
use crate::settings::Settings;

/// Memberships of the smaller of two fleets whose lookups are compared, under callgrind.
const GROWTH_FROM: usize = 250_000;
/// Memberships of the fleet whose stores are counted, under callgrind.
const COUNTED: usize = 250_000;

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

/// Instructions of what else is compared: no noise of the machine is in them, but no cache misses either.
pub fn instructions(settings: &Settings, note: &dyn Fn(&str)) -> anyhow::Result<Vec<Row>> {
    let counter = Counter::new(note)?;
    let mut rows = Vec::new();
    for shape in settings.shapes() {
        note(&format!(
            "instructions: {} targets x {} blocks",
            shape.targets, shape.depth
        ));
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
            for (what, unit, answer) in [
                ("lookup", "/lookup", lookups),
                ("store", "/block", stores),
                ("remove", "/block", removals),
            ] {
                let case = format!("{} of {what}, {unit}", counter.unit());
                rounds.note(&case, counter.unit(), kind, answer.total / answer.of);
            }
        }
        rows.extend(rounds.rows(shape.targets, shape.depth));
    }
    Ok(rows)
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
            Some(_) => "instructions",
            None => "CPU ns",
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
