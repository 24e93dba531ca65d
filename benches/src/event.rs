//! The neutral form of events and requests, from which each structure's own form is made before the clock starts.

use domain::{BlockHash, SequenceHash};

use crate::random::mix;

/// One change of one target's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose cache: a dense number.
    pub target: u32,
    /// What changed.
    pub change: Change,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Blocks were filled, each the child of the one before.
    Stored {
        /// The engine's name of the block that the first one extends.
        parent: Option<u64>,
        /// The blocks.
        blocks: Vec<Block>,
    },
    /// The blocks of these names were evicted.
    Removed(Vec<u64>),
    /// Everything was.
    Cleared,
}

impl Event {
    /// Block operations it counts as: one a block. Clearing counts as none.
    pub fn blocks(&self) -> usize {
        match &self.change {
            Change::Stored { blocks, .. } => blocks.len(),
            Change::Removed(names) => names.len(),
            Change::Cleared => 0,
        }
    }
}

/// One block under its two names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The engine's name of it and everything before it.
    pub name: u64,
    /// The hash of its own content.
    pub content: u64,
}

/// How engines name their blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Naming {
    /// By the sequence hash that everybody else uses.
    Canonical,
    /// By a hash of their own, the same in the whole fleet (vLLM with a fixed PYTHONHASHSEED).
    Foreign,
    /// By a hash that differs from target to target (vLLM without).
    PerTarget,
}

impl Naming {
    /// What `target` calls the block of `sequence`.
    pub fn name(self, target: u32, sequence: SequenceHash) -> u64 {
        match self {
            Self::Canonical => sequence.get(),
            Self::Foreign => mix(sequence.get() ^ 0x5eed),
            Self::PerTarget => mix(sequence.get() ^ mix(u64::from(target))),
        }
    }

    /// As it is written in tables and flags.
    pub fn text(self) -> &'static str {
        match self {
            Self::Canonical => "canonical",
            Self::Foreign => "foreign",
            Self::PerTarget => "per-target",
        }
    }
}

/// What a router asks: the full blocks of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The hash of each block's content.
    pub content: Vec<u64>,
    /// The hash of each block and everything before it.
    pub sequence: Vec<SequenceHash>,
}

impl Request {
    /// A request for these blocks.
    pub fn new(content: Vec<u64>) -> Self {
        let blocks: Vec<BlockHash> = content.iter().map(|it| BlockHash::new(*it)).collect();
        Self {
            sequence: domain::sequence_hashes(&blocks),
            content,
        }
    }

    /// How many blocks.
    pub fn blocks(&self) -> usize {
        self.content.len()
    }
}

/// The sequence hash of `content` after `parent`.
pub fn extend(parent: Option<SequenceHash>, content: u64) -> SequenceHash {
    let block = BlockHash::new(content);
    parent.map_or_else(|| SequenceHash::root(block), |it| it.extend(block))
}
