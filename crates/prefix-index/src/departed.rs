//! A bounded memory of blocks that nobody holds any more, which readers may ask while the writer adds.
//!
//! Lines of sixteen blocks, chosen by hash; of a block half its hash is kept. In each line the newest comes
//! first and pushes out the oldest. There is room for twice the bound, so that few lines push out anything
//! before the bound is reached.

use std::sync::OnceLock;

use crate::arena::{Line, WORDS};
use crate::processor::read_ahead;
use crate::sync::{AtomicU64, Ordering};

/// Lines that are made at a time.
const SEGMENT_LINES: usize = 512;
/// Blocks in a line, two to a word.
const BLOCKS: usize = 2 * WORDS;

#[derive(Debug)]
pub(crate) struct Departed {
    segments: Box<[OnceLock<Box<[Line]>>]>,
    lines: usize,
    forgotten: AtomicU64,
}

/// What is kept of a block; 0 is none.
const fn kept(hash: u64) -> u64 {
    match hash as u32 {
        0 => 1,
        low => low as u64,
    }
}

impl Departed {
    /// Remembers about `bound` blocks, and at most twice as many.
    pub(crate) fn new(bound: usize) -> Self {
        let lines = (bound * 2).div_ceil(BLOCKS);
        Self {
            segments: (0..lines.div_ceil(SEGMENT_LINES))
                .map(|_| OnceLock::new())
                .collect(),
            lines,
            forgotten: AtomicU64::new(0),
        }
    }

    /// Where the block under `hash` belongs.
    fn line(&self, hash: u64) -> Option<&Line> {
        let line = ((u128::from(hash) * self.lines as u128) >> 64) as usize;
        let segment = self.segments.get(line / SEGMENT_LINES)?;
        Some(&segment.get()?[line % SEGMENT_LINES])
    }

    /// Whether the block under `hash` is remembered, or one whose hash is the same in both halves that count.
    pub(crate) fn contains(&self, hash: u64) -> bool {
        // The writer moves blocks up before it overwrites them, so one that is moving is not missed.
        self.line(hash).is_some_and(|line| {
            line.words().iter().any(|word| {
                let word = word.load(Ordering::Acquire);
                word >> 32 == kept(hash) || u64::from(word as u32) == kept(hash)
            })
        })
    }

    /// Asks for the line where the block under `hash` belongs.
    pub(crate) fn touch(&self, hash: u64) {
        if let Some(line) = self.line(hash) {
            read_ahead(line);
        }
    }

    /// Adds the block under `hash`. The writer's.
    pub(crate) fn insert(&self, hash: u64) {
        if self.lines == 0 {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let line = ((u128::from(hash) * self.lines as u128) >> 64) as usize;
        let lines = self.segments[line / SEGMENT_LINES]
            .get_or_init(|| (0..SEGMENT_LINES).map(|_| Line::default()).collect());
        let words = lines[line % SEGMENT_LINES].words();
        let mut last = 0;
        for word in words {
            last = word.load(Ordering::Relaxed);
            if last >> 32 == kept(hash) || u64::from(last as u32) == kept(hash) {
                return;
            }
        }
        if last >> 32 != 0 {
            let forgotten = self.forgotten.load(Ordering::Relaxed);
            self.forgotten.store(forgotten + 1, Ordering::Relaxed);
        }
        for index in (0..WORDS).rev() {
            let newer = match index {
                0 => kept(hash),
                _ => words[index - 1].load(Ordering::Relaxed) >> 32,
            };
            let moved = (words[index].load(Ordering::Relaxed) << 32) | newer;
            words[index].store(moved, Ordering::Release);
        }
    }

    /// Blocks forgotten because there was no more room.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let made = self.segments.iter().filter(|it| it.get().is_some());
        made.count() * SEGMENT_LINES * size_of::<Line>()
    }
}
