//! Memory that readers may look at while the writer gives it another use: cache lines of atomics, addressed
//! by number and never returned before the index goes, so that a stale address is safe to follow.

use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering};

/// Words in a line.
pub(crate) const WORDS: usize = 8;
/// Lines in a segment: 1 MiB at a time. No extent is larger.
pub(crate) const SEGMENT_LINES: usize = 1 << SEGMENT_BITS;
const SEGMENT_BITS: u32 = if cfg!(all(loom, test)) { 6 } else { 14 };
/// Segments at most: 8 GiB, some 300 million blocks. Beyond, blocks are refused and counted.
const SEGMENTS: usize = 8192;

/// One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Line([AtomicU64; WORDS]);

impl Line {
    #[inline]
    pub(crate) fn get(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn atomic(&self, word: usize) -> &AtomicU64 {
        &self.0[word]
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64; WORDS] {
        &self.0
    }
}

/// The word at `index` of `lines`.
#[inline]
pub(crate) fn word(lines: &[Line], index: usize) -> u64 {
    lines[index / WORDS].get(index % WORDS)
}

/// Sets the word at `index` of `lines`.
#[inline]
pub(crate) fn set_word(lines: &[Line], index: usize, value: u64) {
    lines[index / WORDS].set(index % WORDS, value);
}

/// Segments of lines, each made when it is first needed.
#[derive(Debug)]
pub(crate) struct Arena {
    segments: Box<[OnceLock<Box<[Line]>>]>,
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self {
            segments: (0..SEGMENTS).map(|_| OnceLock::new()).collect(),
        }
    }

    /// `count` lines from `first` on. None where a torn address leads nowhere.
    #[inline]
    pub(crate) fn lines(&self, first: u32, count: usize) -> Option<&[Line]> {
        let segment = self.segments.get((first >> SEGMENT_BITS) as usize)?.get()?;
        let from = first as usize & (SEGMENT_LINES - 1);
        segment.get(from..from + count)
    }

    #[inline]
    pub(crate) fn line(&self, at: u32) -> Option<&Line> {
        let segment = self.segments.get((at >> SEGMENT_BITS) as usize)?.get()?;
        segment.get(at as usize & (SEGMENT_LINES - 1))
    }

    /// Lines that the writer knows to be there.
    #[inline]
    pub(crate) fn own(&self, first: u32, count: usize) -> &[Line] {
        self.lines(first, count)
            .expect("the writer's addresses are allocated")
    }

    fn add(&self, segment: usize) {
        self.segments[segment]
            .get_or_init(|| (0..SEGMENT_LINES).map(|_| Line::default()).collect());
    }
}

/// Which lines of an arena are free. The writer's.
#[derive(Debug)]
pub(crate) struct Space {
    /// The lowest line never given out, and the end of its segment.
    next: usize,
    end: usize,
    /// Free extents by class, and a bit for each class that has any.
    free: Vec<Vec<u32>>,
    some_free: u64,
    used: usize,
}

/// Classes of extents: 1 to 8 lines, then four to each doubling, up to a segment.
const CLASSES: usize = 8 + 4 * (SEGMENT_BITS as usize - 3);

/// The smallest class of at least `lines`.
fn class_of(lines: usize) -> usize {
    if lines <= 8 {
        return lines - 1;
    }
    let step_bits = (lines - 1).ilog2() - 2;
    let steps = (lines - 1) >> step_bits;
    8 + (step_bits as usize - 1) * 4 + (steps - 4)
}

/// Lines in an extent of `class`.
fn lines_in(class: usize) -> usize {
    if class < 8 {
        return class + 1;
    }
    let (doubling, step) = ((class - 8) / 4, (class - 8) % 4);
    (step + 5) << (doubling + 1)
}

/// What an extent of at least `lines` really has.
pub(crate) fn rounded(lines: usize) -> usize {
    lines_in(class_of(lines))
}

impl Space {
    /// Line 0 is never given out.
    pub(crate) fn new() -> Self {
        Self {
            free: vec![Vec::new(); CLASSES],
            ..Self::none()
        }
    }

    /// A stand-in that has nothing and needs no memory.
    pub(crate) const fn none() -> Self {
        Self {
            next: 1,
            end: 0,
            free: Vec::new(),
            some_free: 0,
            used: 0,
        }
    }

    /// Lines in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Lines that were ever in use.
    pub(crate) fn reached(&self) -> usize {
        self.next
    }

    /// Lines never given out yet.
    pub(crate) fn untouched(&self) -> usize {
        SEGMENTS * SEGMENT_LINES - self.next
    }

    /// The first of [`rounded`] `lines` lines. The caller has made sure that there is room.
    pub(crate) fn take(&mut self, arena: &Arena, lines: usize) -> u32 {
        let class = class_of(lines);
        let size = lines_in(class);
        self.used += size;
        let fitting = self.some_free >> class;
        if fitting != 0 {
            let found = class + fitting.trailing_zeros() as usize;
            let at = self.free[found].pop().expect("the class has some");
            if self.free[found].is_empty() {
                self.some_free &= !(1 << found);
            }
            self.put(at + size as u32, lines_in(found) - size);
            return at;
        }
        if self.end < self.next + size {
            let rest = self.end.saturating_sub(self.next);
            self.put(self.next as u32, rest);
            let segment = self.end / SEGMENT_LINES;
            arena.add(segment);
            self.next = self.end.max(1);
            self.end += SEGMENT_LINES;
            if self.end < self.next + size {
                // Only the first segment lacks a line; the next one has them all.
                self.put(self.next as u32, self.end - self.next);
                arena.add(segment + 1);
                self.next = self.end;
                self.end += SEGMENT_LINES;
            }
        }
        let at = self.next as u32;
        self.next += size;
        at
    }

    /// Takes back an extent of [`rounded`] `lines`.
    pub(crate) fn give(&mut self, at: u32, lines: usize) {
        let size = rounded(lines);
        self.used -= size;
        self.put(at, size);
    }

    fn put(&mut self, mut at: u32, mut lines: usize) {
        while 0 < lines {
            let mut class = class_of(lines.min(SEGMENT_LINES));
            if lines < lines_in(class) {
                class -= 1;
            }
            self.free[class].push(at);
            self.some_free |= 1 << class;
            at += lines_in(class) as u32;
            lines -= lines_in(class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_fits() {
        for lines in 1..=SEGMENT_LINES {
            let class = class_of(lines);
            assert!(lines <= lines_in(class), "{lines}");
            assert!(class == 0 || lines_in(class - 1) < lines, "{lines}");
        }
        assert_eq!(lines_in(CLASSES - 1), SEGMENT_LINES);
    }
}
