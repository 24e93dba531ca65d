//! How much memory an index takes.

use crate::PrefixIndex;
use crate::arena::Line;
use crate::forest::Info;

/// Memory of an index by what it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of blocks, runs, holders and tables in use.
    pub used: usize,
    /// Bytes that these ever took and keep for what comes.
    pub kept: usize,
    /// Names in the tables of all domains; each takes 8 bytes of its table, and 8 more beside its run where it
    /// is not the block's sequence hash.
    pub names: u64,
    /// Names that targets keep by themselves: of a second copy, another group, or another block of their domain.
    pub odd_names: usize,
    /// Blocks that nobody holds any more and that still lie where they were; part of `used`.
    pub ghosts: usize,
    /// Bytes for the other blocks that nobody holds any more.
    pub departed: usize,
}

impl PrefixIndex {
    /// How much memory it takes. Linear in targets.
    pub fn memory(&self) -> Memory {
        let forest = &self.forest;
        let (used, kept) = forest.lines_used();
        let odd = self.ranks.values().map(|it| it.odd.len());
        Memory {
            used: used * size_of::<Line>(),
            kept: kept * size_of::<Line>() + forest.info.capacity() * size_of::<Info>(),
            names: forest.domains.names(),
            odd_names: odd.sum(),
            ghosts: forest.ghosts(),
            departed: forest.board.departed.bytes(),
        }
    }
}
