//! A table from hashes to places, 8 bytes an entry: part of the hash, which also gives the home, and the
//! place. It holds no keys: whoever looks something up checks each place that is offered.
//!
//! A line of eight entries is a bucket. An entry lies in its home bucket, or in a later one if all from there
//! on are full; so a search ends at the first bucket with a free slot, mostly the first, and a removal from a
//! full bucket moves one back that had to go on. Each part has a version, so that readers may search while
//! the writer changes it.

use crate::arena::{Arena, Line, SEGMENT_LINES, Space, WORDS, rounded};
use crate::processor::read_ahead;
use crate::sync::{
    AtomicU64, Conflict, Ordering, begin_read, begin_write, end_read, end_write, is_still,
};

/// Bits of an entry that are part of the hash; the others are the place.
const TAG_BITS: u32 = 24;
const PLACE_BITS: u32 = 64 - TAG_BITS;
/// The most blocks of a run: an offset takes 12 bits of a place.
pub(crate) const OFFSET_BITS: u32 = 12;

/// A part grows by so many lines at least, or doubles.
const SMALL: usize = 16;
/// Entries that are added at once.
pub(crate) const AT_ONCE: usize = 16;

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
    /// Of all but entries that are added: they do not move others, and are there from one moment to the next.
    version: AtomicU64,
    /// An [`Extent`]; 0 while there are no lines.
    extent: AtomicU64,
    /// How many entries more there may be before an eighth of the homes' slots is left. The writer's.
    room: AtomicU64,
}

/// Where a part's lines are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Extent(u64);

impl Extent {
    const fn new(first: u32, lines: usize) -> Self {
        Self((first as u64) << 32 | (homes(lines) as u64) << 16 | lines as u64)
    }

    #[inline]
    const fn first(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    const fn lines(self) -> usize {
        self.0 as u16 as usize
    }

    #[inline]
    const fn homes(self) -> usize {
        (self.0 >> 16) as u16 as usize
    }

    /// Entries that leave an eighth of the homes' slots free.
    const fn most(self) -> u64 {
        (self.homes() * (WORDS - 1)) as u64
    }
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
    let is_there = |slot: usize| usize::from(bucket.get(slot % WORDS) != 0);
    let mut count = 4 * is_there(3);
    count += 2 * is_there(count + 1);
    count += is_there(count);
    if count == WORDS - 1 {
        count += is_there(count);
    }
    count
}

/// An entry to be added, and the bucket that it belongs in.
#[derive(Clone, Copy)]
struct Aimed<'a> {
    part: &'a Part,
    /// The part's extent as it was.
    extent: Extent,
    home: Option<&'a Line>,
    tag: u64,
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
        let extent = part.extent();
        let mut found = None;
        let mut at = extent.first() + home(tag, extent.homes()) as u32;
        let end = extent.first() + extent.lines() as u32;
        'search: while at < end {
            let bucket = arena.line(at).ok_or(Conflict)?;
            let mut alike = which(bucket, |entry| self::tag(entry) == tag);
            while alike != 0 {
                let entry = bucket.get(alike.trailing_zeros() as usize % WORDS);
                let place = Place::of(entry);
                if entry != 0 && accept(place) {
                    found = Some(place);
                    break 'search;
                }
                alike &= alike - 1;
            }
            if bucket.get(WORDS - 1) == 0 {
                break;
            }
            at += 1;
        }
        end_read();
        if !is_still(&part.version, seen) {
            return Err(Conflict);
        }
        Ok(found)
    }

    /// Where an entry under `hash` belongs.
    #[inline]
    fn aim<'a>(&'a self, arena: &'a Arena, hash: u64) -> Aimed<'a> {
        let (part, tag) = self.part(hash);
        let extent = part.extent();
        let home = home(tag, extent.homes()) as u32;
        Aimed {
            part,
            extent,
            home: arena.line(extent.first().wrapping_add(home)),
            tag,
        }
    }

    /// Reads the homes of `hashes`, to have them at hand: the waits for several overlap, where those of the
    /// searches that follow would come one after the other.
    #[inline]
    pub(crate) fn touch(&self, arena: &Arena, hashes: impl Iterator<Item = u64>) {
        for hash in hashes {
            if let Some(home) = self.aim(arena, hash).home {
                read_ahead(home);
            }
        }
    }

    /// Adds an entry. The writer's.
    #[inline]
    pub(crate) fn insert(&self, arena: &Arena, space: &mut Space, hash: u64, place: Place) {
        self.insert_aimed(arena, space, self.aim(arena, hash), place);
        self.count.store(self.len() + 1, Ordering::Relaxed);
    }

    /// Adds entries under `hashes` for the places from `first` on. First the homes of some are read, with little
    /// between the reads, so that many are waited for at a time. The writer's.
    #[inline]
    pub(crate) fn insert_all(
        &self,
        arena: &Arena,
        space: &mut Space,
        mut hashes: impl ExactSizeIterator<Item = u64>,
        first: Place,
    ) {
        let (run, mut offset) = (first.run, first.offset);
        self.count
            .store(self.len() + hashes.len() as u64, Ordering::Relaxed);
        let mut aimed = [self.aim(arena, 0); AT_ONCE];
        while hashes.len() != 0 {
            let mut count = 0;
            for (aimed, hash) in aimed.iter_mut().zip(&mut hashes) {
                *aimed = self.aim(arena, hash);
                if let Some(home) = aimed.home {
                    read_ahead(home);
                }
                count += 1;
            }
            for aimed in &aimed[..count] {
                self.insert_aimed(arena, space, *aimed, Place { run, offset });
                offset += 1;
            }
        }
    }

    #[inline]
    fn insert_aimed(&self, arena: &Arena, space: &mut Space, aimed: Aimed<'_>, place: Place) {
        let part = aimed.part;
        let entry = (aimed.tag << PLACE_BITS) | place.bits();
        let room = part.room.load(Ordering::Relaxed);
        if part.extent() == aimed.extent
            && room != 0
            && let Some(home) = aimed.home
        {
            let count = filled(home);
            if count < WORDS {
                // Whoever sees it sees the run as well.
                home.atomic(count % WORDS).store(entry, Ordering::Release);
                part.room.store(room - 1, Ordering::Relaxed);
                return;
            }
        }
        part.insert(arena, space, entry);
    }

    /// Removes an entry that was added. The writer's.
    pub(crate) fn remove(&self, arena: &Arena, space: &mut Space, hash: u64, place: Place) {
        let (part, tag) = self.part(hash);
        let entry = (tag << PLACE_BITS) | place.bits();
        let extent = part.extent();
        debug_assert!(extent.0 != 0, "an entry that was added is in a part");
        if extent.0 == 0 {
            return;
        }
        let lines = arena.own(extent.first(), extent.lines());
        let homes = extent.homes();
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
        let room = part.room.load(Ordering::Relaxed) + 1;
        if room == extent.most() {
            part.forget(space);
        } else {
            part.room.store(room, Ordering::Relaxed);
        }
        end_write(&part.version);
    }

    /// Removes all entries. The writer's.
    pub(crate) fn clear(&self, space: &mut Space) {
        for part in &self.parts {
            if part.extent().0 != 0 {
                begin_write(&part.version);
                part.forget(space);
                end_write(&part.version);
            }
        }
        self.count.store(0, Ordering::Relaxed);
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
    /// Adds an entry wherever there is room for it.
    #[inline(never)]
    fn insert(&self, arena: &Arena, space: &mut Space, entry: u64) {
        let extent = self.extent();
        let room = self.room.load(Ordering::Relaxed);
        if room != 0 && put(arena.own(extent.first(), extent.lines()), entry) {
            self.room.store(room - 1, Ordering::Relaxed);
        } else {
            self.grow(arena, space, entry);
        }
    }

    #[inline]
    fn extent(&self) -> Extent {
        Extent(self.extent.load(Ordering::Relaxed))
    }

    /// Gives the lines back, within a change.
    fn forget(&self, space: &mut Space) {
        let extent = self.extent();
        self.extent.store(0, Ordering::Relaxed);
        self.room.store(0, Ordering::Relaxed);
        space.give(extent.first(), extent.lines());
    }

    /// Moves the entries and one more to a third more lines, or to twice as many while there are few.
    #[cold]
    fn grow(&self, arena: &Arena, space: &mut Space, entry: u64) {
        let old = self.extent();
        let from = arena.own(old.first(), old.lines());
        let count = old.most() - self.room.load(Ordering::Relaxed) + 1;
        begin_write(&self.version);
        let mut lines = old.lines();
        loop {
            lines = rounded((lines + (lines / 3).max(lines.min(SMALL)) + 1).max(2));
            let first = space.take(arena, lines);
            if move_all(from, entry, arena.own(first, lines)) {
                if old.0 != 0 {
                    space.give(old.first(), old.lines());
                }
                let extent = Extent::new(first, lines);
                self.extent.store(extent.0, Ordering::Relaxed);
                self.room.store(extent.most() - count, Ordering::Relaxed);
                break;
            }
            space.give(first, lines);
        }
        end_write(&self.version);
    }
}

/// Puts the entries of `from` and one more into `to`, whatever is there. Whether they all fit.
fn move_all(from: &[Line], entry: u64, to: &[Line]) -> bool {
    let homes = homes(to.len());
    let mut filled = vec![0_u8; to.len()];
    let mut put = |entry: u64| {
        let mut at = home(tag(entry), homes);
        while filled.get(at).is_some_and(|it| usize::from(*it) == WORDS) {
            at += 1;
        }
        let (Some(filled), Some(bucket)) = (filled.get_mut(at), to.get(at)) else {
            return false;
        };
        bucket.set(usize::from(*filled) % WORDS, entry);
        *filled += 1;
        true
    };
    for bucket in from {
        for word in bucket.words() {
            let entry = word.load(Ordering::Relaxed);
            if entry == 0 {
                break;
            }
            if !put(entry) {
                return false;
            }
        }
    }
    let all = put(entry);
    for (bucket, filled) in to.iter().zip(filled) {
        (filled.into()..WORDS).for_each(|slot| bucket.set(slot, 0));
    }
    all
}

/// Puts `entry` into the first bucket from its home on that has a free slot. Whether there is one.
#[inline]
fn put(lines: &[Line], entry: u64) -> bool {
    for bucket in &lines[home(tag(entry), homes(lines.len()))..] {
        let count = filled(bucket);
        if count < WORDS {
            // Whoever sees it sees the run as well.
            bucket.atomic(count % WORDS).store(entry, Ordering::Release);
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
