//! A run: consecutive blocks of one chain, kept in columns, with those who hold them. Runs are never split:
//! a chain that parts from one hangs on it at any offset, and a hole is a matter of its holders.
//!
//! A run's header is one line that is never used for anything else:
//!
//! | word | high to low |
//! |---|---|
//! | 0 | version |
//! | 1 | key of the namespace |
//! | 2 | parent (32), the offset it hangs at there (32) |
//! | 3 | blocks before it in the chain (32), its blocks (16), lines of each column (16) |
//! | 4 | first line of the columns (32), of the holders' list (32; 0: in words 6 and 7) |
//! | 5 | whether anything hangs on it (1), lines (15), parts (24) and prefixes (24) of the list |
//! | 6, 7 | the list, if it is short |

use crate::arena::{Arena, Line, SEGMENT_LINES, WORDS, word};

/// The most blocks of a run. The rest of a longer chain hangs on its end.
pub(crate) const MAX_BLOCKS: usize = if cfg!(test) { 16 } else { 4096 };
/// The most parts of a run after an operation: during one, a target may add a part for each block, and of the
/// prefixes there are two for each cut at most, and a list is one extent.
pub(crate) const MAX_PARTS: usize = SEGMENT_LINES * WORDS - 4 * MAX_BLOCKS;
/// The parent of a run that begins a chain.
pub(crate) const NO_RUN: u32 = 0;
/// Entries that a header has room for.
pub(crate) const INLINE: usize = 2;

pub(crate) const VERSION: usize = 0;
pub(crate) const KEY: usize = 1;
pub(crate) const PARENT: usize = 2;
pub(crate) const SPAN: usize = 3;
pub(crate) const COLUMNS: usize = 4;
pub(crate) const COUNTS: usize = 5;
pub(crate) const LIST: usize = 6;

/// A header as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) key: u64,
    pub(crate) parent: u32,
    /// Blocks of the parent before it.
    pub(crate) hangs_at: u32,
    /// Blocks of the chain before it.
    pub(crate) start: u32,
    /// Its blocks.
    pub(crate) len: usize,
    /// Lines of each column.
    pub(crate) column_lines: usize,
    pub(crate) columns: u32,
    pub(crate) list: u32,
    pub(crate) list_lines: usize,
    /// Entries of the list that are prefixes; they come first.
    pub(crate) prefixes: usize,
    /// Entries that are parts.
    pub(crate) parts: usize,
    pub(crate) has_children: bool,
    pub(crate) inline: [u64; INLINE],
}

impl View {
    #[inline]
    pub(crate) fn read(header: &Line) -> Self {
        let parent = header.get(PARENT);
        let span = header.get(SPAN);
        let columns = header.get(COLUMNS);
        let counts = header.get(COUNTS);
        Self {
            key: header.get(KEY),
            parent: (parent >> 32) as u32,
            hangs_at: parent as u32,
            start: (span >> 32) as u32,
            len: (span >> 16) as u16 as usize,
            column_lines: span as u16 as usize,
            columns: (columns >> 32) as u32,
            list: columns as u32,
            list_lines: (counts >> 48) as usize & 0x7fff,
            prefixes: counts as usize & 0xff_ffff,
            parts: (counts >> 24) as usize & 0xff_ffff,
            has_children: counts >> 63 != 0,
            inline: [header.get(LIST), header.get(LIST + 1)],
        }
    }

    /// A run without blocks.
    pub(crate) const fn empty() -> Self {
        Self {
            key: 0,
            parent: NO_RUN,
            hangs_at: 0,
            start: 0,
            len: 0,
            column_lines: 0,
            columns: 0,
            list: 0,
            list_lines: 0,
            prefixes: 0,
            parts: 0,
            has_children: false,
            inline: [0; INLINE],
        }
    }

    pub(crate) fn write_span(&self, header: &Line) {
        let span =
            (u64::from(self.start) << 32) | ((self.len as u64) << 16) | self.column_lines as u64;
        header.set(SPAN, span);
        self.write_lists(header);
    }

    pub(crate) fn write_lists(&self, header: &Line) {
        header.set(
            COLUMNS,
            (u64::from(self.columns) << 32) | u64::from(self.list),
        );
        let counts = (u64::from(self.has_children) << 63)
            | ((self.list_lines as u64) << 48)
            | ((self.parts as u64) << 24)
            | self.prefixes as u64;
        header.set(COUNTS, counts);
    }

    /// The blocks' own hashes.
    #[inline]
    pub(crate) fn blocks<'a>(&self, arena: &'a Arena) -> Option<&'a [Line]> {
        arena.lines(self.columns, self.column_lines)
    }

    /// The blocks' sequence hashes.
    #[inline]
    pub(crate) fn sequences<'a>(&self, arena: &'a Arena) -> Option<&'a [Line]> {
        arena.lines(self.columns + self.column_lines as u32, self.column_lines)
    }

    /// The block's own hash at `offset`.
    #[inline]
    pub(crate) fn block(&self, arena: &Arena, offset: usize) -> Option<u64> {
        let line = arena.line(self.columns.wrapping_add((offset / WORDS) as u32))?;
        Some(line.get(offset % WORDS))
    }

    /// The sequence hash at `offset`.
    #[inline]
    pub(crate) fn sequence(&self, arena: &Arena, offset: usize) -> Option<u64> {
        let line = arena.line(
            self.columns
                .wrapping_add((self.column_lines + offset / WORDS) as u32),
        )?;
        Some(line.get(offset % WORDS))
    }

    /// The list's entries.
    #[inline]
    pub(crate) fn entries<'a>(&'a self, arena: &'a Arena) -> Option<Entries<'a>> {
        let count = self.prefixes + self.parts;
        if self.list == 0 {
            return (count <= INLINE).then_some(Entries::Inline(&self.inline));
        }
        arena
            .lines(self.list, count.div_ceil(WORDS))
            .map(Entries::Listed)
    }
}

/// Where a run's entries are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entries<'a> {
    Inline(&'a [u64; INLINE]),
    Listed(&'a [Line]),
}

impl Entries<'_> {
    #[inline]
    pub(crate) fn get(self, index: usize) -> Entry {
        Entry::of(self.raw(index))
    }

    #[inline]
    pub(crate) fn raw(self, index: usize) -> u64 {
        match self {
            Self::Inline(words) => words[index],
            Self::Listed(lines) => word(lines, index),
        }
    }
}

/// The cut of who holds all of a run, however it grows.
pub(crate) const WHOLE: u32 = (1 << CUT_BITS) - 1;
const CUT_BITS: u32 = 14;
const KIND_SHIFT: u32 = 62;
const CUT_SHIFT: u32 = 48;
const ONE: u64 = 0;
const MANY: u64 = 1;
const PART: u64 = 2;

/// Who holds some of a run.
///
/// Prefixes come first, the longest first; then parts, by slot and start. A slot has one prefix, or parts
/// that do not meet unless their tiers differ, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A slot that holds the first `cut` blocks in GPU memory and nothing else.
    One { cut: u32, slot: u32 },
    /// Slots that do, as a bit set.
    Many { cut: u32, words: u32, line: u32 },
    /// A slot that holds some blocks in some tiers.
    Part(Part),
}

/// The blocks from `start` to before `end`, held in `tiers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) slot: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) tiers: Tiers,
}

/// Slots that fit an entry, and with them targets that can be known at a time.
pub(crate) const MAX_SLOTS: u32 = 1 << 20;

impl Entry {
    #[inline]
    pub(crate) const fn of(bits: u64) -> Self {
        let cut = (bits >> CUT_SHIFT) as u32 & WHOLE;
        match bits >> KIND_SHIFT {
            ONE => Self::One {
                cut,
                slot: bits as u32,
            },
            MANY => Self::Many {
                cut,
                words: (bits >> 32) as u16 as u32,
                line: bits as u32,
            },
            _ => Self::Part(Part {
                slot: (bits >> 32) as u32 & (MAX_SLOTS - 1),
                start: (bits >> 16) as u16 as u32,
                end: (bits >> 3) as u32 & (WHOLE >> 1),
                tiers: Tiers(bits as u8 & 7),
            }),
        }
    }

    pub(crate) const fn bits(self) -> u64 {
        match self {
            Self::One { cut, slot } => {
                (ONE << KIND_SHIFT) | ((cut as u64) << CUT_SHIFT) | slot as u64
            }
            Self::Many { cut, words, line } => {
                (MANY << KIND_SHIFT)
                    | ((cut as u64) << CUT_SHIFT)
                    | ((words as u64) << 32)
                    | line as u64
            }
            Self::Part(Part {
                slot,
                start,
                end,
                tiers,
            }) => {
                (PART << KIND_SHIFT)
                    | ((slot as u64) << 32)
                    | ((start as u64) << 16)
                    | ((end as u64) << 3)
                    | tiers.0 as u64
            }
        }
    }
}

/// Tiers that a block is in, one bit each, GPU memory first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tiers(pub(crate) u8);

impl Tiers {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const GPU: Self = Self(1);
}
