//! Reading a store back.

use std::collections::{BTreeMap, BTreeSet};

use contracts::Encoding;
use contracts::index_store::{Base, Fence, LogCursors, Segment, StoredRank};
use prefix_index::{PrefixIndex, RankSnapshot};
use sled::IVec;

use super::keys::{self, RankNumber};
use super::{Slots, Store, StoreError};

/// How many left-over keys are removed at a time.
const REMOVED_AT_ONCE: usize = 1000;

/// What a store held, besides what went into the index.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) cursors: LogCursors,
    pub(crate) ranks: BTreeMap<RankNumber, LoadedRank>,
    /// The lowest number not yet given.
    pub(crate) next_number: u64,
}

/// A rank and how much of the store it takes.
#[derive(Debug)]
pub(crate) struct LoadedRank {
    pub(crate) stored: StoredRank,
    pub(crate) base_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) slots: Slots,
}

/// A rank whose parts are being collected.
struct Reading {
    stored: StoredRank,
    base: Option<Base>,
    chunks: u32,
    base_bytes: u64,
    /// By number.
    segments: BTreeMap<u64, (u32, Segment)>,
    segment_bytes: u64,
}

impl Store {
    /// Puts everything stored into `index`, which is empty, and removes what an interrupted fold or erasure
    /// left over.
    pub(crate) fn load(&self, index: &mut PrefixIndex) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded::default();
        if let Some(cursors) = self.db.get(keys::CURSORS)? {
            loaded.cursors = LogCursors::from_bytes(&cursors)?;
        }
        let mut reading = self.read_ranks()?;
        let mut left_over = Vec::new();
        let mut numbers = BTreeSet::new();
        self.read_chunks(index, &mut reading, &mut left_over, &mut numbers)?;
        self.read_segments(&mut reading, &mut left_over, &mut numbers)?;
        for (number, rank) in reading {
            numbers.insert(number);
            loaded.ranks.insert(number, rank.finish(index)?);
        }
        for entry in self.db.scan_prefix([keys::FENCES]) {
            let (_, value) = entry?;
            let Fence { worker, epoch } = Fence::from_bytes(&value)?;
            index.fence(&worker, epoch);
        }
        self.remove(left_over)?;
        loaded.next_number = numbers.last().map_or(0, |it| it.0 + 1);
        Ok(loaded)
    }

    fn read_ranks(&self) -> Result<BTreeMap<RankNumber, Reading>, StoreError> {
        let mut reading = BTreeMap::new();
        for entry in self.db.scan_prefix([keys::RANKS]) {
            let (key, value) = entry?;
            let number = number(&key)?;
            let stored = StoredRank::from_bytes(&value)?;
            let base = self.db.get(keys::base(number))?;
            let base = base.map(|it| Base::from_bytes(&it)).transpose()?;
            let rank = Reading {
                stored,
                base,
                chunks: 0,
                base_bytes: 0,
                segments: BTreeMap::new(),
                segment_bytes: 0,
            };
            reading.insert(number, rank);
        }
        let count = self.db.get(keys::RANK_COUNT)?;
        let count = count.map(|it| keys::read(&it, 0).map_or(u64::MAX, u64::from_be_bytes));
        if count.unwrap_or(0) != reading.len() as u64 {
            let why = format!("{} of {count:?} ranks are there", reading.len());
            return Err(StoreError::Damaged(why));
        }
        Ok(reading)
    }

    fn read_chunks(
        &self,
        index: &mut PrefixIndex,
        reading: &mut BTreeMap<RankNumber, Reading>,
        left_over: &mut Vec<IVec>,
        numbers: &mut BTreeSet<RankNumber>,
    ) -> Result<(), StoreError> {
        for entry in self.db.scan_prefix([keys::CHUNKS]) {
            let (key, value) = entry?;
            let number = number(&key)?;
            numbers.insert(number);
            let place = keys::read(&key, 9).map(u8::from_be_bytes);
            let chunk = keys::read(&key, 10).map(u32::from_be_bytes);
            let is_part = |base: Base| {
                place == Some(keys::generation_place(base.generation))
                    && chunk.is_some_and(|it| it < base.chunks)
            };
            let Some(rank) = reading.get_mut(&number) else {
                left_over.push(key);
                continue;
            };
            if !rank.base.is_some_and(is_part) {
                // Of the generation before, or of one that was not finished; it will be written over.
                continue;
            }
            rank.chunks += 1;
            rank.base_bytes += value.len() as u64;
            let piece = RankSnapshot::from_bytes(&value)?;
            index
                .restore(&rank.stored.target, &piece)
                .map_err(|why| StoreError::Damaged(why.to_string()))?;
        }
        Ok(())
    }

    fn read_segments(
        &self,
        reading: &mut BTreeMap<RankNumber, Reading>,
        left_over: &mut Vec<IVec>,
        numbers: &mut BTreeSet<RankNumber>,
    ) -> Result<(), StoreError> {
        for entry in self.db.scan_prefix([keys::SEGMENTS]) {
            let (key, value) = entry?;
            let number = number(&key)?;
            numbers.insert(number);
            let slot = keys::read(&key, 9).map(u32::from_be_bytes);
            let slot = slot.ok_or_else(|| odd(&key))?;
            let segment = Segment::from_bytes(&value)?;
            let rank = reading.get_mut(&number);
            let Some(rank) = rank.filter(|it| it.first_segment() <= segment.number) else {
                left_over.push(key);
                continue;
            };
            rank.segment_bytes += value.len() as u64;
            rank.segments.insert(segment.number, (slot, segment));
        }
        Ok(())
    }

    /// Removes `keys`, a few at a time.
    pub(super) fn remove(&self, keys: Vec<IVec>) -> Result<(), StoreError> {
        for some in keys.chunks(REMOVED_AT_ONCE) {
            let mut batch = sled::Batch::default();
            some.iter().for_each(|key| batch.remove(key));
            self.db.apply_batch(batch)?;
        }
        Ok(())
    }
}

impl Reading {
    fn first_segment(&self) -> u64 {
        self.base.map_or(0, |it| it.first_segment)
    }

    /// Checks that all parts are there, applies the segments, and gives the rank the claims it had.
    fn finish(self, index: &mut PrefixIndex) -> Result<LoadedRank, StoreError> {
        let damaged = |why: &dyn std::fmt::Display| StoreError::Damaged(why.to_string());
        let target = &self.stored.target;
        let chunks = self.base.map_or(0, |it| it.chunks);
        let expected = self.first_segment()..self.stored.next_segment;
        if self.chunks != chunks || !self.segments.keys().copied().eq(expected.clone()) {
            return Err(StoreError::Damaged(format!(
                "{target} has {} of {chunks} chunks and {} of the segments {expected:?}",
                self.chunks,
                self.segments.len()
            )));
        }
        for (_, segment) in self.segments.values() {
            for op in &segment.ops {
                index.apply(target, op).map_err(|why| damaged(&why))?;
            }
        }
        let claims = RankSnapshot {
            claims: self.stored.claims,
            namespaces: Vec::new(),
            blocks: Vec::new(),
        };
        let restored = index.restore(target, &claims);
        restored.map_err(|why| damaged(&why))?;
        let used = self
            .segments
            .iter()
            .map(|(number, (slot, _))| (*number, *slot));
        Ok(LoadedRank {
            slots: Slots::found(used.collect()),
            stored: self.stored,
            base_bytes: self.base_bytes,
            segment_bytes: self.segment_bytes,
        })
    }
}

fn number(key: &[u8]) -> Result<RankNumber, StoreError> {
    let number = keys::read(key, 1).map(u64::from_be_bytes);
    number.map(RankNumber).ok_or_else(|| odd(key))
}

fn odd(key: &[u8]) -> StoreError {
    StoreError::Damaged(format!("odd key {key:?}"))
}
