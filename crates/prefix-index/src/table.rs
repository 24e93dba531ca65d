//! A table from hashes to places, 8 bytes an entry: part of the hash, which also gives the home slot, and
//! the place. It holds no keys: whoever looks something up checks each place that is offered.
//!
//! Entries of a part lie in ascending order (linear probing kept sorted), so that a search ends early, and a
//! removal shifts back what was displaced. Each part has a version, so that readers may search while the
//! writer changes it.

use crate::arena::{Arena, Line, SEGMENT_LINES, Space, WORDS, rounded, set_word, word};
use crate::sync::{
    AtomicU64, Conflict, Ordering, begin_read, begin_write, end_read, end_write, is_still,
};

/// Bits of an entry that are part of the hash; the others are the place.
const TAG_BITS: u32 = 24;
const PLACE_BITS: u32 = 64 - TAG_BITS;
/// The most blocks of a run: an offset takes 12 bits of a place.
pub(crate) const OFFSET_BITS: u32 = 12;

/// A block's place: its run and its offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Not 0, so that no entry is.
    pub(crate) run: u32,
    pub(crate) offset: u16,
}

impl Place {
    const fn bits(self) -> u64 {
        ((self.run as u64) << OFFSET_BITS) | self.offset as u64
    }

    const fn of(entry: u64) -> Self {
        let bits = entry & ((1 << PLACE_BITS) - 1);
        Self {
            run: (bits >> OFFSET_BITS) as u32,
            offset: (bits & ((1 << OFFSET_BITS) - 1)) as u16,
        }
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Table {
    parts: Box<[Part]>,
    part_bits: u32,
    /// The writer's.
    count: AtomicU64,
}

/// The entries whose hash begins with the same bits.
#[derive(Debug, Default)]
struct Part {
    version: AtomicU64,
    /// First line (high half) and number of lines; 0 while there are none.
    extent: AtomicU64,
    /// The writer's.
    count: AtomicU64,
}

/// Lines beyond the home slots, for the displaced of the last ones.
const fn overflow(lines: usize) -> usize {
    1 + lines / 32
}

const fn homes(lines: usize) -> usize {
    (lines - overflow(lines)) * WORDS
}

const fn home(tag: u64, homes: usize) -> usize {
    ((tag * homes as u64) >> TAG_BITS) as usize
}

const fn tag(entry: u64) -> u64 {
    entry >> PLACE_BITS
}

impl Table {
    /// With `2^part_bits` parts, which grow each by itself.
    pub(crate) fn new(part_bits: u32) -> Self {
        Self {
            parts: (0..1 << part_bits).map(|_| Part::default()).collect(),
            part_bits,
            count: AtomicU64::new(0),
        }
    }

    #[inline]
    fn part(&self, hash: u64) -> (&Part, u64) {
        let part = hash.checked_shr(64 - self.part_bits).unwrap_or(0);
        let tag = (hash << self.part_bits) >> PLACE_BITS;
        (&self.parts[part as usize], tag)
    }

    /// The first place under `hash` that `accept` takes, which may see what is just being changed.
    #[inline]
    pub(crate) fn find(
        &self,
        arena: &Arena,
        hash: u64,
        mut accept: impl FnMut(Place) -> bool,
    ) -> Result<Option<Place>, Conflict> {
        let (part, tag) = self.part(hash);
        let seen = begin_read(&part.version)?;
        let extent = part.extent.load(Ordering::Relaxed);
        let mut found = None;
        if extent != 0 {
            let count = extent as u32 as usize;
            let lines = arena.lines((extent >> 32) as u32, count).ok_or(Conflict)?;
            let mut index = home(tag, homes(count));
            while index < count * WORDS {
                let entry = word(lines, index);
                if entry == 0 || tag < self::tag(entry) {
                    break;
                }
                if self::tag(entry) == tag && accept(Place::of(entry)) {
                    found = Some(Place::of(entry));
                    break;
                }
                index += 1;
            }
        }
        end_read();
        if !is_still(&part.version, seen) {
            return Err(Conflict);
        }
        Ok(found)
    }

    /// The home slot of `hash`, read to have it at hand: several of these overlap where the searches that
    /// follow would wait one after the other.
    #[inline]
    pub(crate) fn touch(&self, arena: &Arena, hash: u64) -> u64 {
        let (part, tag) = self.part(hash);
        let extent = part.extent.load(Ordering::Relaxed);
        if extent == 0 {
            return 0;
        }
        let count = extent as u32 as usize;
        let lines = arena.own((extent >> 32) as u32, count);
        word(lines, home(tag, homes(count)))
    }

    /// Adds an entry. The writer's.
    pub(crate) fn insert(&self, arena: &Arena, space: &mut Space, hash: u64, place: Place) {
        let (part, tag) = self.part(hash);
        let entry = (tag << PLACE_BITS) | place.bits();
        let count = part.count.load(Ordering::Relaxed) + 1;
        self.count.store(self.len() + 1, Ordering::Relaxed);
        begin_write(&part.version);
        part.count.store(count, Ordering::Relaxed);
        let mut extent = part.extent.load(Ordering::Relaxed);
        let lines = extent as u32 as usize;
        if lines == 0 || homes(lines) as u64 * 4 < count * 5 {
            extent = part.grow(arena, space);
        }
        while !put(arena, extent, entry) {
            extent = part.grow(arena, space);
        }
        end_write(&part.version);
    }

    /// Removes an entry that was added. The writer's.
    pub(crate) fn remove(&self, arena: &Arena, space: &mut Space, hash: u64, place: Place) {
        let (part, tag) = self.part(hash);
        let entry = (tag << PLACE_BITS) | place.bits();
        let extent = part.extent.load(Ordering::Relaxed);
        let count = extent as u32 as usize;
        debug_assert!(count != 0, "an entry that was added is in a part");
        if count == 0 {
            return;
        }
        let lines = arena.own((extent >> 32) as u32, count);
        let homes = homes(count);
        let mut index = home(tag, homes);
        while index < count * WORDS && word(lines, index) != entry {
            index += 1;
        }
        debug_assert!(index < count * WORDS, "an entry that was added is there");
        if index == count * WORDS {
            return;
        }
        self.count.store(self.len() - 1, Ordering::Relaxed);
        begin_write(&part.version);
        let mut next = index + 1;
        while next < count * WORDS {
            let follower = word(lines, next);
            if follower == 0 || home(self::tag(follower), homes) == next {
                break;
            }
            set_word(lines, next - 1, follower);
            next += 1;
        }
        set_word(lines, next - 1, 0);
        let left = part.count.load(Ordering::Relaxed) - 1;
        part.count.store(left, Ordering::Relaxed);
        if left == 0 {
            part.extent.store(0, Ordering::Relaxed);
            space.give((extent >> 32) as u32, count);
        }
        end_write(&part.version);
    }

    /// Whether `more` entries have room, with much to spare for uneven parts.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        let most = (SEGMENT_LINES * WORDS) << self.part_bits;
        self.len() as usize + more < most / 2
    }

    /// Entries in all.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Part {
    /// Moves the entries to a quarter more lines.
    fn grow(&self, arena: &Arena, space: &mut Space) -> u64 {
        let old = self.extent.load(Ordering::Relaxed);
        let old_lines = old as u32 as usize;
        let lines = rounded((old_lines + old_lines / 4 + 1).max(2));
        let first = space.take(arena, lines);
        let extent = (u64::from(first) << 32) | lines as u64;
        let new = arena.own(first, lines);
        for index in 0..lines * WORDS {
            set_word(new, index, 0);
        }
        if old != 0 {
            let entries = arena.own((old >> 32) as u32, old_lines);
            spread(entries, new);
            space.give((old >> 32) as u32, old_lines);
        }
        self.extent.store(extent, Ordering::Relaxed);
        extent
    }
}

/// Lays the entries of `old` out in `new`, which is empty and has more homes. Each entry's home moves down
/// by no more than all do, so the room beyond the homes suffices.
fn spread(old: &[Line], new: &[Line]) {
    let homes = homes(new.len());
    let mut next = 0;
    for index in 0..old.len() * WORDS {
        let entry = word(old, index);
        if entry != 0 {
            let at = next.max(home(tag(entry), homes));
            set_word(new, at, entry);
            next = at + 1;
        }
    }
}

/// Puts `entry` into its place of the order. Whether there was room.
fn put(arena: &Arena, extent: u64, entry: u64) -> bool {
    let count = extent as u32 as usize;
    let lines = arena.own((extent >> 32) as u32, count);
    let mut index = home(tag(entry), homes(count));
    while index < count * WORDS {
        let there = word(lines, index);
        if there == 0 || entry < there {
            break;
        }
        index += 1;
    }
    let mut free = index;
    while free < count * WORDS && word(lines, free) != 0 {
        free += 1;
    }
    if free == count * WORDS {
        return false;
    }
    while index < free {
        set_word(lines, free, word(lines, free - 1));
        free -= 1;
    }
    set_word(lines, index, entry);
    true
}
