//! What a request says of its blocks.

use domain::{BlockHash, SequenceHash};

/// A request's full blocks, from the first.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Every block's sequence hash. The fastest form: its cost does not depend on the depth.
    Sequences(&'a [SequenceHash]),
    /// Every block's own hash. Nothing has to be chained before asking.
    Blocks(&'a [BlockHash]),
    /// Some sequence hashes only.
    Sparse(Sparse<'a>),
    /// What follows a block of which a sparse request has shown that it is known.
    Window(Window<'a>),
}

/// Every k-th sequence hash of a request, and its last.
///
/// Let D be the deepest of the given positions that the index knows. Of a target that holds `h` leading
/// blocks the answer says `min(h, D)`: exact up to D, and never less than `h` rounded down to a multiple of
/// k. The last position, where it is no multiple of k, is known only if no chain parts from the one of the
/// position before between the two.
#[derive(Clone, Copy, Debug)]
pub struct Sparse<'a> {
    every: u32,
    blocks: u32,
    hashes: &'a [SequenceHash],
}

/// The sequence hashes of the blocks that follow the first `after` blocks of a request, and of the last of those.
///
/// A sparse request whose answer ends at one of its positions is made exact by a window behind it. The answer is
/// that to all blocks up to the window's end; it is empty where the index does not know the block before the window.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    pub(crate) after: u32,
    pub(crate) last: SequenceHash,
    pub(crate) hashes: &'a [SequenceHash],
}

/// A window that begins where the index cannot find its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a window after {after} blocks: it must be a multiple of 16, and not 0")]
pub struct InvalidWindow {
    /// Where it begins.
    pub after: u32,
}

/// Hashes that do not fit the number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSparse {
    /// The distance is no multiple of [`Sparse::GRAIN`].
    #[error("every {every}th hash: the distance must be a multiple of 16")]
    Every {
        /// The distance asked for.
        every: u32,
    },
    /// There are more or fewer hashes than that.
    #[error("{given} hashes were given where {expected} were expected")]
    Count {
        /// How many there are.
        given: usize,
        /// How many there should be.
        expected: usize,
    },
}

impl<'a> Sparse<'a> {
    /// The distances that can be asked for are multiples of this many blocks.
    pub const GRAIN: u32 = 16;

    /// `hashes` are the sequence hashes of the first `every`, `2 * every` and so on of `blocks` blocks, and,
    /// where `blocks` is no multiple of `every`, that of all of them.
    pub fn new(every: u32, blocks: u32, hashes: &'a [SequenceHash]) -> Result<Self, InvalidSparse> {
        if every == 0 || !every.is_multiple_of(Self::GRAIN) {
            return Err(InvalidSparse::Every { every });
        }
        let expected = blocks.div_ceil(every) as usize;
        let given = hashes.len();
        if given != expected {
            return Err(InvalidSparse::Count { given, expected });
        }
        Ok(Self {
            every,
            blocks,
            hashes,
        })
    }

    /// The given hashes.
    pub(crate) fn hashes(self) -> &'a [SequenceHash] {
        self.hashes
    }

    /// How many blocks the hash at `place` stands for.
    pub(crate) fn depth(self, place: usize) -> u32 {
        let depth = (place as u64 + 1) * u64::from(self.every);
        depth.min(u64::from(self.blocks)) as u32
    }
}

impl<'a> Window<'a> {
    /// `last` is the sequence hash of the block before the window, the one at `after` counted from 1; `hashes` are
    /// those of the blocks that follow it.
    pub fn new(
        after: u32,
        last: SequenceHash,
        hashes: &'a [SequenceHash],
    ) -> Result<Self, InvalidWindow> {
        if after == 0 || !after.is_multiple_of(Sparse::GRAIN) {
            return Err(InvalidWindow { after });
        }
        Ok(Self {
            after,
            last,
            hashes,
        })
    }
}

impl<'a> From<&'a [SequenceHash]> for Request<'a> {
    fn from(hashes: &'a [SequenceHash]) -> Self {
        Self::Sequences(hashes)
    }
}

impl<'a> From<&'a Vec<SequenceHash>> for Request<'a> {
    fn from(hashes: &'a Vec<SequenceHash>) -> Self {
        Self::Sequences(hashes)
    }
}

impl<'a> From<&'a [BlockHash]> for Request<'a> {
    fn from(hashes: &'a [BlockHash]) -> Self {
        Self::Blocks(hashes)
    }
}

impl<'a> From<&'a Vec<BlockHash>> for Request<'a> {
    fn from(hashes: &'a Vec<BlockHash>) -> Self {
        Self::Blocks(hashes)
    }
}

impl<'a> From<Window<'a>> for Request<'a> {
    fn from(window: Window<'a>) -> Self {
        Self::Window(window)
    }
}

impl<'a> From<Sparse<'a>> for Request<'a> {
    fn from(sparse: Sparse<'a>) -> Self {
        Self::Sparse(sparse)
    }
}
