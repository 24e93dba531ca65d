//! A bounded memory of blocks that nobody holds any more, which readers may ask while the writer adds.
//!
//! Lines of eight blocks, chosen by hash; in each line the newest comes first and pushes out the oldest. There
//! is room for twice the bound, so that few lines push out anything before the bound is reached.

use std::sync::OnceLock;

use crate::arena::{Line, WORDS};
use crate::sync::{AtomicU64, Ordering};

/// Lines that are made at a time.
const SEGMENT_LINES: usize = 512;

#[derive(Debug)]
pub(crate) struct Departed {
    segments: Box<[OnceLock<Box<[Line]>>]>,
    lines: usize,
    forgotten: AtomicU64,
}

impl Departed {
    /// Remembers about `bound` blocks, and at most twice as many.
    pub(crate) fn new(bound: usize) -> Self {
        let lines = (bound * 2).div_ceil(WORDS);
        Self {
            segments: (0..lines.div_ceil(SEGMENT_LINES))
                .map(|_| OnceLock::new())
                .collect(),
            lines,
            forgotten: AtomicU64::new(0),
        }
    }

    /// Where the block under `hash` belongs, and the segment's place of it.
    fn place(&self, hash: u64) -> (usize, usize) {
        let line = ((u128::from(hash) * self.lines as u128) >> 64) as usize;
        (line / SEGMENT_LINES, line % SEGMENT_LINES)
    }

    /// Whether `name`, whose hash is `hash`, is remembered.
    pub(crate) fn contains(&self, hash: u64, name: u64) -> bool {
        let (segment, line) = self.place(hash);
        let Some(lines) = self.segments.get(segment).and_then(OnceLock::get) else {
            return false;
        };
        // The writer moves entries up before it overwrites them, so one that is moving is not missed.
        let mut names = lines[line].words().iter();
        names.any(|it| it.load(Ordering::Acquire) == name)
    }

    /// Adds `name`, which is not 0. The writer's.
    pub(crate) fn insert(&self, hash: u64, name: u64) {
        if self.lines == 0 {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.contains(hash, name) {
            return;
        }
        let (segment, line) = self.place(hash);
        let lines = self.segments[segment]
            .get_or_init(|| (0..SEGMENT_LINES).map(|_| Line::default()).collect());
        let names = lines[line].words();
        if names[WORDS - 1].load(Ordering::Relaxed) != 0 {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        for index in (1..WORDS).rev() {
            names[index].store(names[index - 1].load(Ordering::Relaxed), Ordering::Release);
        }
        names[0].store(name, Ordering::Release);
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
