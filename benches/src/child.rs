//! Measurements that need a process of their own: memory, and instructions under callgrind.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::clock::resident;
use crate::contest::Kind;
use crate::event::{Event, Naming, Request};
use crate::fleet::{Asked, Fleet, Shape};
use crate::structures::{How, Queue};

const SEED: u64 = 2026;
/// Events on their way while memory is measured, so that they do not count.
const IN_FLIGHT: usize = 64;
/// Lookups whose instructions are counted.
const LOOKUPS: usize = 200;

/// What a child measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Measure {
    /// Resident bytes of a full index.
    Memory,
    /// CPU nanoseconds of lookups on it; what callgrind counts.
    Lookups,
    /// The same, by sequence hashes.
    LookupsBySequence,
    /// Of filling it.
    Stores,
    /// Of filling it and evicting half.
    StoresAndRemovals,
}

/// The command line of a child.
#[derive(Clone, Debug, clap::Args)]
pub struct Order {
    #[arg(value_enum)]
    measure: Measure,
    #[arg(value_enum)]
    kind: Kind,
    #[arg(value_enum)]
    naming: Naming,
    targets: u32,
    depth: usize,
    memberships: usize,
}

/// What a child answers, on one line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Bytes or CPU nanoseconds.
    pub total: f64,
    /// Memberships, lookups or blocks that it is for.
    pub of: f64,
}

impl Order {
    /// The order to measure `measure` of `kind`.
    pub fn new(measure: Measure, kind: Kind, naming: Naming, shape: Shape) -> Self {
        Self {
            measure,
            kind,
            naming,
            targets: shape.targets,
            depth: shape.depth,
            memberships: shape.memberships,
        }
    }

    /// Carries it out in this process.
    pub fn carry_out(&self) -> anyhow::Result<Answer> {
        let shape = Shape {
            targets: self.targets,
            depth: self.depth,
            memberships: self.memberships,
        };
        let fleet = Fleet::new(shape, self.naming, SEED);
        match self.measure {
            Measure::Memory => self.memory(&fleet),
            Measure::Lookups => Ok(self.lookups(&fleet, How::Native)),
            Measure::LookupsBySequence => Ok(self.lookups(&fleet, How::BySequence)),
            Measure::Stores => Ok(self.lane(fleet.stores(SEED).collect())),
            Measure::StoresAndRemovals => {
                Ok(self.lane(fleet.stores(SEED).chain(fleet.removals(SEED)).collect()))
            }
        }
    }

    fn memory(&self, fleet: &Fleet) -> anyhow::Result<Answer> {
        let mut structure = self.kind.start(self.targets, Queue::Bounded(IN_FLIGHT));
        let mut events = fleet.stores(SEED);
        let before = resident()?;
        structure.stream(&mut events);
        drop(events);
        let after = resident()?;
        Ok(Answer {
            total: after.saturating_sub(before) as f64,
            of: fleet.memberships() as f64,
        })
    }

    fn lookups(&self, fleet: &Fleet, how: How) -> Answer {
        let mut structure = self.kind.start(self.targets, Queue::Unbounded);
        structure.stream(&mut fleet.stores(SEED));
        let asked: Vec<Asked> = fleet.requests(LOOKUPS, SEED + 2);
        let requests: Vec<Request> = asked.into_iter().map(|it| it.request).collect();
        structure.prepare(&requests);
        // Once before, so that what is only done once does not count.
        structure.pass(how);
        let mut total = 0.0;
        counted(&mut || total = structure.pass(how).as_nanos() as f64);
        Answer {
            total,
            of: requests.len() as f64,
        }
    }

    fn lane(&self, events: Vec<Event>) -> Answer {
        let mut total = 0.0;
        self.kind.run_here(self.targets, &events, &mut |run| {
            total = crate::clock::cpu_of(|| counted(run)).as_nanos() as f64;
        });
        Answer {
            total,
            of: events.iter().map(Event::blocks).sum::<usize>() as f64,
        }
    }

    fn arguments(&self) -> Vec<String> {
        use clap::ValueEnum as _;
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.expect("no value is hidden").get_name().to_owned()
        };
        vec![
            "child".to_owned(),
            name(self.measure.to_possible_value()),
            name(self.kind.to_possible_value()),
            name(self.naming.to_possible_value()),
            self.targets.to_string(),
            self.depth.to_string(),
            self.memberships.to_string(),
        ]
    }

    /// Has a fresh process of this program carry it out.
    pub fn delegate(&self) -> anyhow::Result<Answer> {
        let program = std::env::current_exe().context("find this program")?;
        let output = Command::new(program)
            .args(self.arguments())
            .stderr(Stdio::inherit())
            .output()
            .context("start a process to measure in")?;
        if !output.status.success() {
            bail!(
                "measuring in a process of its own failed: {}",
                output.status
            );
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let mut figures = text.split_whitespace().map(str::parse);
        match (figures.next(), figures.next()) {
            (Some(Ok(total)), Some(Ok(of))) => Ok(Answer { total, of }),
            _ => bail!("a measuring process answered {text:?}"),
        }
    }

    /// Has a fresh process under callgrind carry it out: the same, with instructions as the total.
    pub fn count(&self, folder: &Path) -> anyhow::Result<Answer> {
        let program = std::env::current_exe().context("find this program")?;
        let file = folder.join("callgrind.out");
        let output = Command::new("valgrind")
            .args([
                "--tool=callgrind",
                "--collect-atstart=no",
                "--toggle-collect=*child::counted*",
            ])
            .arg(format!("--callgrind-out-file={}", file.display()))
            .arg(program)
            .args(self.arguments())
            .output()
            .context("start valgrind")?;
        if !output.status.success() {
            bail!(
                "under valgrind: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let of = text
            .split_whitespace()
            .nth(1)
            .context("the child's answer")?;
        let counts = std::fs::read_to_string(&file).context("read callgrind's counts")?;
        let total = counts.lines().find_map(|it| it.strip_prefix("totals:"));
        Ok(Answer {
            total: total.context("find callgrind's total")?.trim().parse()?,
            of: of.parse()?,
        })
    }
}

/// Whether instructions can be counted here.
pub fn has_callgrind() -> bool {
    let asked = Command::new("valgrind").arg("--version").output();
    asked.is_ok_and(|it| it.status.success())
}

/// What callgrind counts: it knows this function by its name.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
    // Something after the call, so that it is not a jump that never comes back here.
    std::hint::black_box(());
}
