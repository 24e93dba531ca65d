//! Which of a rank's slots hold segments that still count.

use std::collections::{BTreeMap, BTreeSet};

/// The slots of one rank. There are as many as were ever in use at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    /// By the number of the segment.
    used: BTreeMap<u64, u32>,
    /// The others below `end`.
    free: BTreeSet<u32>,
    end: u32,
}

impl Slots {
    /// The slots of the segments that were found.
    pub(crate) fn found(used: BTreeMap<u64, u32>) -> Self {
        let end = used.values().max().map_or(0, |last| last + 1);
        let taken: BTreeSet<u32> = used.values().copied().collect();
        let free = (0..end).filter(|slot| !taken.contains(slot)).collect();
        Self { used, free, end }
    }

    /// A slot for the segment of this number: the lowest free one, so that neighbours are written together.
    pub(crate) fn take(&mut self, segment: u64) -> u32 {
        let slot = self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        });
        self.used.insert(segment, slot);
        slot
    }

    /// The slots in use, by the numbers of their segments.
    pub(crate) fn used(&self) -> &BTreeMap<u64, u32> {
        &self.used
    }

    /// The segments below `until` count no more.
    pub(crate) fn free_below(&mut self, until: u64) {
        let kept = self.used.split_off(&until);
        self.free.extend(self.used.values());
        self.used = kept;
    }
}
