//! What to compare, and how large.

use std::path::PathBuf;

use crate::contest::Kind;
use crate::event::Naming;
use crate::fleet::Shape;

/// The part of `index` that a flag can ask for alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Part {
    /// Who is wrong against the naive model.
    Verify,
    /// Applying stores and removals.
    Store,
    /// Lookups of every kind on a full index.
    Lookup,
    /// Lookups beside events, 1:1 and 10:1.
    Mixed,
    /// From sending an update until a lookup shows it.
    Visible,
    /// Traces through caches that evict as engines do.
    Traces,
    /// Bytes for each membership, in processes of their own.
    Memory,
    /// Instructions of a lookup when memberships double.
    Growth,
    /// Instructions of stores, removals and lookups; unless asked for, only where a ratio is close.
    Instructions,
}

/// What `index` does.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// One JSON object a line on standard output, and the tables on standard error.
    #[arg(long)]
    pub json: bool,
    /// A tenth of the memberships and fewer rounds: shows that it works, not how fast it is.
    #[arg(long)]
    pub quick: bool,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Only these structures.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub structures: Vec<Kind>,
    /// Targets in the fleet.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 64, 512])]
    pub targets: Vec<u32>,
    /// Blocks of a conversation.
    #[arg(long, value_delimiter = ',', default_values_t = [32, 512, 4096])]
    pub depths: Vec<usize>,
    /// (target, block) pairs of a full index.
    #[arg(long, default_value_t = 1_000_000)]
    pub memberships: usize,
    /// Rounds, interleaved among the structures; the figures are their medians.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// How engines name blocks wherever a case does not say.
    #[arg(long, value_enum, default_value = "canonical")]
    pub engine_hashes: Naming,
    /// Mooncake traces to replay, separated by commas; without, the thousand requests that ship with Rankway.
    #[arg(long, env = "RANKWAY_BENCH_TRACES", value_delimiter = ',')]
    pub traces: Vec<PathBuf>,
}

impl Settings {
    /// Whether `part` was asked for.
    pub fn does(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// The structures that were asked for, ours first.
    pub fn kinds(&self) -> Vec<Kind> {
        let asked = |it: &Kind| self.structures.is_empty() || self.structures.contains(it);
        Kind::ALL.into_iter().filter(asked).collect()
    }

    /// The fleets that were asked for.
    pub fn shapes(&self) -> Vec<Shape> {
        let memberships = self.memberships();
        let with = |targets: u32| {
            self.depths.iter().map(move |depth| Shape {
                targets,
                depth: *depth,
                memberships,
            })
        };
        self.targets.iter().copied().flat_map(with).collect()
    }

    /// Pairs of a full index.
    pub fn memberships(&self) -> usize {
        self.memberships / if self.quick { 10 } else { 1 }
    }

    /// Rounds of each measurement.
    pub fn rounds(&self) -> usize {
        if self.quick {
            self.rounds.min(2)
        } else {
            self.rounds
        }
    }

    /// `number`, or a tenth where it has to be quick.
    pub fn fewer(&self, number: usize) -> usize {
        if self.quick {
            number.div_ceil(10)
        } else {
            number
        }
    }
}
