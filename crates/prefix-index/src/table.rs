//! A table from hashes to places, 8 bytes an entry: part of the hash, which also gives the home, and the
//! place. It holds no keys: whoever looks something up checks each place that is offered.
//!
//! A line of eight entries is a bucket. An entry lies in its home bucket, or in a later one if all from there
//! on are full; so a search ends at the first bucket with a free slot, mostly the first, and a removal from a
//! full bucket moves one back that had to go on. Each part has a version, so that readers may search while
//! the writer changes it.

use crate::arena::{Arena, Line, SEGMENT_LINES, Space, WORDS, rounded};
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

/// Buckets that are homes, of `lines`. The others are for what had to go on from the last ones.
const fn homes(lines: usize) -> usize {
    lines - 1 - lines / 32
}

const fn home(tag: u64, homes: usize) -> usize {
    ((tag * homes as u64) >> TAG_BITS) as usize
}

const fn tag(entry: u64) -> u64 {
    entry >> PLACE_BITS
}

/// A bit for each entry of `bucket` that is `so`.
#[inline]
fn which(bucket: &Line, so: impl Fn(u64) -> bool) -> u32 {
    (0..WORDS).fold(0, |bits, index| {
        bits | (u32::from(so(bucket.get(index))) << index)
    })
}

/// How many entries `bucket` has; they come first in it.
#[inline]
fn filled(bucket: &Line) -> usize {
    let is_there = |slot: usize| usize::from(bucket.get(slot) != 0);
    let mut count = 4 * is_there(3);
    count += 2 * is_there(count + 1);
    count += is_there(count);
    if count == WORDS - 1 {
        count += is_there(count);
    }
    count
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
        let part = (hash >> 1) >> (63 - self.part_bits);
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
            let from = home(tag, homes(count));
            'search: for bucket in lines.get(from..).unwrap_or_default() {
                let mut alike = which(bucket, |entry| self::tag(entry) == tag && entry != 0);
                while alike != 0 {
                    let place = Place::of(bucket.get(alike.trailing_zeros() as usize));
                    if accept(place) {
                        found = Some(place);
                        break 'search;
                    }
                    alike &= alike - 1;
                }
                if bucket.get(WORDS - 1) == 0 {
                    break;
                }
            }
        }
        end_read();
        if !is_still(&part.version, seen) {
            return Err(Conflict);
        }
        Ok(found)
    }

    /// Reads the homes of `hashes`, to have them at hand: the waits for several overlap, where those of the
    /// searches that follow would come one after the other.
    #[inline]
    pub(crate) fn touch_all(&self, arena: &Arena, hashes: &[u64]) {
        if hashes.len() < 2 {
            return;
        }
        let touched = hashes.iter().fold(0, |all, hash| {
            let (part, tag) = self.part(*hash);
            let extent = part.extent.load(Ordering::Relaxed);
            let lines = extent as u32 as usize;
            let home = home(tag, homes(lines.max(2))) as u32;
            let line = arena.line((extent >> 32) as u32 + home);
            all ^ line.map_or(0, |it| it.get(0))
        });
        std::hint::black_box(touched);
    }

    /// Adds an entry. The writer's.
    #[inline]
    pub(crate) fn insert(&self, arena: &Arena, space: &mut Space, hash: u64, place: Place) {
        let (part, tag) = self.part(hash);
        let entry = (tag << PLACE_BITS) | place.bits();
        let extent = part.extent.load(Ordering::Relaxed);
        let lines = extent as u32 as usize;
        let count = part.count.load(Ordering::Relaxed) + 1;
        self.count.store(self.len() + 1, Ordering::Relaxed);
        part.count.store(count, Ordering::Relaxed);
        begin_write(&part.version);
        let fits = lines != 0
            && count * 5 <= (homes(lines) * WORDS * 4) as u64
            && put(arena.own((extent >> 32) as u32, lines), entry);
        if !fits {
            while !put(part.grow(arena, space), entry) {}
        }
        end_write(&part.version);
    }

    /// Adds an entry unless there is one under the same hash that `is_same`. Whether it has. The writer's.
    #[inline]
    pub(crate) fn insert_unless(
        &self,
        arena: &Arena,
        space: &mut Space,
        (hash, place): (u64, Place),
        mut is_same: impl FnMut(Place) -> bool,
    ) -> bool {
        let there = self.find(arena, hash, &mut is_same);
        if there.is_ok_and(|it| it.is_none()) {
            self.insert(arena, space, hash, place);
            return true;
        }
        false
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
        let from = home(tag, homes);
        let found = lines[from..].iter().zip(from..).find_map(|(bucket, at)| {
            let alike = which(bucket, |it| it == entry);
            (alike != 0).then(|| (at, alike.trailing_zeros() as usize))
        });
        debug_assert!(found.is_some(), "an entry that was added is there");
        let Some((mut at, mut slot)) = found else {
            return;
        };
        begin_write(&part.version);
        // A full bucket that loses an entry takes one back that had to go on from there, and so on.
        loop {
            let last = filled(&lines[at]) - 1;
            let follower = match last + 1 {
                WORDS => follower(lines, at, homes),
                _ => None,
            };
            if let Some((next, next_slot)) = follower {
                lines[at].set(slot, lines[next].get(next_slot));
                (at, slot) = (next, next_slot);
                continue;
            }
            lines[at].set(slot, lines[at].get(last));
            lines[at].set(last, 0);
            break;
        }
        self.count.store(self.len() - 1, Ordering::Relaxed);
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
    /// Moves the entries to a third more lines.
    fn grow<'a>(&self, arena: &'a Arena, space: &mut Space) -> &'a [Line] {
        let old = self.extent.load(Ordering::Relaxed);
        let old_lines = old as u32 as usize;
        let mut lines = old_lines;
        loop {
            lines = rounded((lines + lines / 3 + 1).max(2));
            let first = space.take(arena, lines);
            let new = arena.own(first, lines);
            for bucket in new {
                (0..WORDS).for_each(|slot| bucket.set(slot, 0));
            }
            let entries = arena.own((old >> 32) as u32, old_lines);
            let entries = entries
                .iter()
                .flat_map(|it| (0..WORDS).map(|slot| it.get(slot)));
            if entries.filter(|it| *it != 0).all(|it| put(new, it)) {
                if old_lines != 0 {
                    space.give((old >> 32) as u32, old_lines);
                }
                let extent = (u64::from(first) << 32) | lines as u64;
                self.extent.store(extent, Ordering::Relaxed);
                return new;
            }
            space.give(first, lines);
        }
    }
}

/// Puts `entry` into the first bucket from its home on that has a free slot. Whether there is one.
#[inline]
fn put(lines: &[Line], entry: u64) -> bool {
    for bucket in &lines[home(tag(entry), homes(lines.len()))..] {
        let count = filled(bucket);
        if count < WORDS {
            bucket.set(count, entry);
            return true;
        }
    }
    false
}

/// An entry behind the bucket `at` that belongs there or before, up to the first bucket with a free slot.
fn follower(lines: &[Line], at: usize, homes: usize) -> Option<(usize, usize)> {
    for (bucket, next) in lines[at + 1..].iter().zip(at + 1..) {
        let displaced = which(bucket, |it| it != 0 && home(tag(it), homes) <= at);
        if displaced != 0 {
            return Some((next, displaced.trailing_zeros() as usize));
        }
        if bucket.get(WORDS - 1) == 0 {
            return None;
        }
    }
    None
}
