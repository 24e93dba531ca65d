//! Memory that readers may look at while the writer gives it another use: cache lines of atomics, addressed
//! by number and never returned before the index goes, so that a stale address is safe to follow.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::OnceLock;

use crate::processor::{Word, eights_alike};
use crate::sync::{AtomicU64, Ordering};

/// Words in a line.
pub(crate) const WORDS: usize = 8;
/// Lines in a segment: 1 MiB at a time. No extent is larger.
pub(crate) const SEGMENT_LINES: usize = 1 << SEGMENT_BITS;
const SEGMENT_BITS: u32 = if cfg!(test) { 6 } else { 14 };
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

/// How many of the first of `wanted` are the words of `lines` from `from` on.
#[inline]
pub(crate) fn agreeing<W: Word>(lines: &[Line], from: usize, wanted: &[W]) -> usize {
    let most = (lines.len() * WORDS).saturating_sub(from).min(wanted.len());
    let mut same = eights_alike(lines, from, wanted);
    while same < most && word(lines, from + same) == wanted[same].number() {
        same += 1;
    }
    same
}

/// Segments of lines, each made when it is first needed.
#[derive(Debug)]
pub(crate) struct Arena {
    segments: Box<[OnceLock<Segment>]>,
}

type Segment = Box<[Line; SEGMENT_LINES]>;

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
        let from = first as usize % SEGMENT_LINES;
        segment.get(from..from + count)
    }

    #[inline]
    pub(crate) fn line(&self, at: u32) -> Option<&Line> {
        let segment = self.segments.get((at >> SEGMENT_BITS) as usize)?.get()?;
        Some(&segment[at as usize % SEGMENT_LINES])
    }

    /// Lines that the writer knows to be there.
    #[inline]
    pub(crate) fn own(&self, first: u32, count: usize) -> &[Line] {
        self.lines(first, count)
            .expect("the writer's addresses are allocated")
    }

    fn add(&self, segment: usize) {
        self.segments[segment].get_or_init(|| {
            let lines: Box<[Line]> = (0..SEGMENT_LINES).map(|_| Line::default()).collect();
            lines.try_into().expect("so many were made")
        });
    }
}

/// Which lines of an arena are free. The writer's.
#[derive(Debug)]
pub(crate) struct Space {
    /// Free lines that are given out one after the other.
    open: Range<u32>,
    /// Lines of the segments that there are, and lines up to the last that was ever given out.
    lines: usize,
    reached: usize,
    /// Free extents by class, to be given out again as they are, and the lines of those that can be merged.
    whole: [Vec<u32>; CLASSES],
    in_whole: usize,
    /// Other free extents, which have grown together with their neighbours: where they are, and by length.
    free: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
    used: usize,
}

/// Extents of up to so many lines are never merged: short runs and lists take them, and soon give them back.
const SMALL: usize = 4;
/// Extents of so many lines go where they fit best.
const LARGE: usize = 16;
/// Larger ones are merged, where nothing fits and they are more than one in so many of the lines in use.
const IDLE_PART: usize = 64;

/// Classes of extents: 1 to 8 lines, then four to each doubling, up to a segment.
const CLASSES: usize = 8 + 4 * (SEGMENT_BITS as usize - 3);

/// The smallest class of at least `lines`.
const fn class_of(lines: usize) -> usize {
    if lines <= 8 {
        return lines - 1;
    }
    let step_bits = (lines - 1).ilog2() - 2;
    let steps = (lines - 1) >> step_bits;
    8 + (step_bits as usize - 1) * 4 + (steps - 4)
}

/// Lines in an extent of `class`.
const fn lines_in(class: usize) -> usize {
    if class < 8 {
        return class + 1;
    }
    let (doubling, step) = ((class - 8) / 4, (class - 8) % 4);
    (step + 5) << (doubling + 1)
}

/// Lines of an extent of `size` that can be merged.
const fn mergeable(size: usize) -> usize {
    if size <= SMALL { 0 } else { size }
}

/// What an extent of at least `lines` really has.
pub(crate) fn rounded(lines: usize) -> usize {
    lines_in(class_of(lines))
}

impl Space {
    /// Line 0 is never given out.
    pub(crate) const fn new() -> Self {
        Self {
            open: 0..0,
            lines: 0,
            reached: 0,
            whole: [const { Vec::new() }; CLASSES],
            in_whole: 0,
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            used: 0,
        }
    }

    /// Lines in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Lines that were ever in use.
    pub(crate) fn reached(&self) -> usize {
        self.reached
    }

    /// Lines never given out yet.
    pub(crate) fn untouched(&self) -> usize {
        SEGMENTS * SEGMENT_LINES - self.reached
    }

    /// The first of [`rounded`] `lines` lines. The caller has made sure that there is room.
    pub(crate) fn take(&mut self, arena: &Arena, lines: usize) -> u32 {
        let class = class_of(lines);
        let size = lines_in(class);
        self.used += size;
        if let Some(at) = self.whole[class].pop() {
            self.in_whole -= mergeable(size);
            return at;
        }
        if LARGE <= size {
            self.merge_idle();
            if let Some(at) = self.fitting(size as u32) {
                return at;
            }
        }
        while self.open.len() < size {
            self.open_more(arena, size as u32);
        }
        let at = self.open.start;
        self.open.start += size as u32;
        self.reached = self.reached.max(self.open.start as usize);
        at
    }

    /// Opens the largest free extent, or a new segment where none has `size` lines.
    fn open_more(&mut self, arena: &Arena, size: u32) {
        self.keep(self.open.start, self.open.len() as u32);
        self.merge_idle();
        if let Some((length, at)) = self.largest(size) {
            self.open = at..at + length;
            return;
        }
        arena.add(self.lines / SEGMENT_LINES);
        // Line 0 is never given out.
        let first = self.lines.max(1);
        self.lines += SEGMENT_LINES;
        self.open = first as u32..self.lines as u32;
    }

    /// Takes `size` lines off the smallest free extent that has them.
    fn fitting(&mut self, size: u32) -> Option<u32> {
        let (length, at) = self.by_length.range((size, 0)..).next().copied()?;
        self.by_length.remove(&(length, at));
        self.free.remove(&at);
        self.keep(at + size, length - size);
        Some(at)
    }

    /// Takes the largest free extent out, if it has `size` lines.
    fn largest(&mut self, size: u32) -> Option<(u32, u32)> {
        let (length, at) = self.by_length.last().copied()?;
        (size <= length).then(|| {
            self.by_length.remove(&(length, at));
            self.free.remove(&at);
            (length, at)
        })
    }

    /// Takes back an extent of [`rounded`] `lines`.
    pub(crate) fn give(&mut self, at: u32, lines: usize) {
        let class = class_of(lines);
        let size = lines_in(class);
        self.used -= size;
        self.in_whole += mergeable(size);
        self.whole[class].push(at);
    }

    /// Lets the larger extents grow together with their neighbours, where they are many.
    fn merge_idle(&mut self) {
        if IDLE_PART * self.in_whole <= self.used {
            return;
        }
        for class in class_of(SMALL) + 1..CLASSES {
            let size = lines_in(class);
            for at in std::mem::take(&mut self.whole[class]) {
                self.in_whole -= size;
                self.merge(at, size as u32);
            }
        }
    }

    /// Frees an extent that grows together with its neighbours in the segment.
    fn merge(&mut self, mut at: u32, mut length: u32) {
        let segment = SEGMENT_LINES as u32;
        let before = self
            .free
            .range(..at)
            .next_back()
            .map(|(at, length)| (*at, *length));
        if let Some((start, before)) = before
            && start + before == at
            && !at.is_multiple_of(segment)
        {
            self.free.remove(&start);
            self.by_length.remove(&(before, start));
            (at, length) = (start, length + before);
        }
        let end = at + length;
        if !end.is_multiple_of(segment)
            && let Some(after) = self.free.remove(&end)
        {
            self.by_length.remove(&(after, end));
            length += after;
        }
        self.keep(at, length);
    }

    fn keep(&mut self, at: u32, length: u32) {
        if 0 < length {
            self.free.insert(at, length);
            self.by_length.insert((length, at));
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
