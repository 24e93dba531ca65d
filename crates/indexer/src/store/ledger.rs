//! What the store consists of, which rank is to get a base next, and which parts of the journal may go.

use std::collections::{BTreeMap, VecDeque};

use contracts::index_store::{Base, Commit};

/// A rank's number in the store. It is given once for as long as the store says anything of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RankNumber(pub(crate) u64);

/// How long the journal may be, as a multiple of all bases together. A byte of operations costs one byte in the
/// journal and about 1/this in bases, and the folder holds 1 + this times the bases.
const JOURNAL_RATIO: u64 = 1;
/// A shorter journal is not worth a base.
const JOURNAL_FROM_BYTES: u64 = 1024 * 1024;
/// The journal has about so many parts: one that is passed by all ranks but the last takes so much more room.
const PARTS: u64 = 8;

/// The books of the store.
#[derive(Debug)]
pub(super) struct Ledger {
    ranks: BTreeMap<RankNumber, Share>,
    base_bytes: u64,
    /// At least one.
    parts: VecDeque<Part>,
    journal_bytes: u64,
    next_frame: u64,
    /// Ranks that are not there any more, and the last frame with segments of them.
    gone: BTreeMap<RankNumber, u64>,
}

/// What one rank has in it.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    base: Option<Written>,
    /// The first and the last frame with segments of it that count.
    frames: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Written {
    generation: u64,
    bytes: u64,
}

/// A part of the journal.
#[derive(Clone, Copy, Debug)]
struct Part {
    number: u64,
    first_frame: u64,
    bytes: u64,
}

impl Ledger {
    /// A journal whose first part is to be `number`, beginning with `first_frame`.
    pub(super) fn new(number: u64, first_frame: u64) -> Self {
        let part = Part {
            number,
            first_frame,
            bytes: 0,
        };
        Self {
            ranks: BTreeMap::new(),
            base_bytes: 0,
            parts: VecDeque::from([part]),
            journal_bytes: 0,
            next_frame: first_frame,
            gone: BTreeMap::new(),
        }
    }

    /// The next frame has been appended to the last part, with segments of `ranks`.
    pub(super) fn appended(&mut self, bytes: u64, ranks: impl IntoIterator<Item = RankNumber>) {
        for number in ranks {
            let share = self.ranks.entry(number).or_default();
            let first = share.frames.map_or(self.next_frame, |it| it.0);
            share.frames = Some((first, self.next_frame));
        }
        self.last().bytes += bytes;
        self.journal_bytes += bytes;
        self.next_frame += 1;
    }

    /// A rank's base counts from now on. Answers the generation of the one that does not any more.
    pub(super) fn based(&mut self, number: RankNumber, base: &Base) -> Option<u64> {
        let share = self.ranks.entry(number).or_default();
        let written = Written {
            generation: base.generation,
            bytes: base.bytes,
        };
        let old = share.base.replace(written);
        let later = share.frames.filter(|(_, last)| base.first_frame <= *last);
        share.frames = later.map(|(first, last)| (first.max(base.first_frame), last));
        self.base_bytes += base.bytes;
        self.base_bytes -= old.map_or(0, |it| it.bytes);
        old.map(|it| it.generation)
    }

    /// A rank is not there any more. Answers the generation of its base.
    pub(super) fn gone(&mut self, number: RankNumber) -> Option<u64> {
        let Share { base, frames } = self.ranks.remove(&number)?;
        if let Some((_, last)) = frames {
            self.gone.insert(number, last);
        }
        self.base_bytes -= base.map_or(0, |it| it.bytes);
        base.map(|it| it.generation)
    }

    /// Lets go of the parts whose frames count no more. Answers their numbers.
    pub(super) fn pass(&mut self) -> Vec<u64> {
        let firsts = self.ranks.values().filter_map(|it| it.frames);
        let needed = firsts.map(|it| it.0).min().unwrap_or(self.next_frame);
        let mut passed = Vec::new();
        while self.parts.get(1).is_some_and(|it| it.first_frame <= needed) {
            if let Some(part) = self.parts.pop_front() {
                self.journal_bytes -= part.bytes;
                passed.push(part.number);
            }
        }
        let first = self.parts.front().map_or(0, |it| it.first_frame);
        self.gone.retain(|_, last| first <= *last);
        passed
    }

    /// The rank whose base is to be written next, if it is time for one.
    pub(super) fn due(&self) -> Option<RankNumber> {
        if self.journal_bytes <= self.limit() {
            return None;
        }
        let with_frames = self.ranks.iter().filter_map(|(number, share)| {
            let (first, _) = share.frames?;
            Some((first, *number))
        });
        with_frames.min().map(|(_, furthest_back)| furthest_back)
    }

    pub(super) fn part_is_full(&self) -> bool {
        let part = self.parts.back();
        part.is_some_and(|it| self.limit() / PARTS <= it.bytes)
    }

    /// Begins a new part. Answers its number.
    pub(super) fn roll(&mut self) -> u64 {
        let number = self.last_part() + 1;
        self.parts.push_back(Part {
            number,
            first_frame: self.next_frame,
            bytes: 0,
        });
        number
    }

    pub(super) fn last_part(&self) -> u64 {
        self.parts.back().map_or(0, |it| it.number)
    }

    pub(super) fn next_frame(&self) -> u64 {
        self.next_frame
    }

    pub(super) fn next_generation(&self, number: RankNumber) -> u64 {
        let base = self.ranks.get(&number).and_then(|it| it.base);
        base.map_or(0, |it| it.generation + 1)
    }

    /// What the catalog is to say of journal and bases.
    pub(super) fn commit(&self) -> Commit {
        let first = self.parts.front();
        Commit {
            first_part: first.map_or(0, |it| it.number),
            first_frame: first.map_or(0, |it| it.first_frame),
            last_part: self.last_part(),
            bytes: self.parts.back().map_or(0, |it| it.bytes),
            next_frame: self.next_frame,
            bases: self.ranks.values().filter(|it| it.base.is_some()).count() as u64,
            gone: self.gone.keys().map(|it| it.0).collect(),
            ..Commit::default()
        }
    }

    fn last(&mut self) -> &mut Part {
        self.parts.back_mut().expect("there is always one part")
    }

    fn limit(&self) -> u64 {
        JOURNAL_FROM_BYTES.max(self.base_bytes * JOURNAL_RATIO)
    }
}

#[cfg(test)]
mod tests {
    use contracts::index_store::StoredRank;
    use prefix_index::Claims;

    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn base(generation: u64, first_frame: u64, bytes: u64) -> Base {
        Base {
            generation,
            rank: StoredRank {
                target: "w#1/0".parse().unwrap(),
                cursor: None,
                awaiting: None,
                claims: Claims::Complete,
            },
            first_frame,
            bytes,
        }
    }

    #[test]
    fn the_rank_furthest_back_is_due_and_a_part_goes_when_all_have_passed_it() {
        let [one, other] = [RankNumber(1), RankNumber(2)];
        let mut ledger = Ledger::new(0, 0);
        ledger.appended(MIB, [one, other]);
        assert_eq!(ledger.due(), None);
        assert!(ledger.part_is_full());
        assert_eq!(ledger.roll(), 1);
        ledger.appended(1, [one]);
        assert_eq!(ledger.due(), Some(one));

        assert_eq!(ledger.based(one, &base(0, 2, 10)), None);
        assert_eq!(ledger.pass(), [0; 0]);
        assert_eq!(ledger.due(), Some(other));
        assert_eq!(ledger.based(other, &base(0, 1, 10)), None);
        assert_eq!(ledger.pass(), [0]);

        assert_eq!(ledger.due(), None);
        let commit = ledger.commit();
        assert_eq!((commit.first_part, commit.last_part), (1, 1));
        assert_eq!((commit.first_frame, commit.next_frame), (1, 2));
        assert_eq!((commit.bytes, commit.bases), (1, 2));
        assert_eq!(ledger.based(one, &base(1, 2, 10)), Some(0));
        assert_eq!(ledger.gone(one), Some(1));
        assert_eq!(ledger.gone(one), None);
        assert_eq!(ledger.next_generation(one), 0);
    }

    #[test]
    fn a_rank_that_is_gone_is_named_for_as_long_as_the_journal_has_segments_of_it() {
        let [one, other] = [RankNumber(1), RankNumber(2)];
        let mut ledger = Ledger::new(0, 0);
        ledger.appended(1, [one, other]);
        ledger.roll();
        ledger.appended(1, [other]);

        assert_eq!(ledger.gone(one), None);
        assert_eq!(ledger.commit().gone, [1]);
        ledger.based(other, &base(0, 1, 10));
        assert_eq!(ledger.pass(), [0]);
        assert_eq!(ledger.commit().gone, [0; 0]);
    }

    #[test]
    fn segments_applied_while_a_base_was_written_still_count() {
        let rank = RankNumber(1);
        let mut ledger = Ledger::new(0, 0);
        ledger.appended(MIB, [rank]);
        ledger.appended(MIB, [rank]);
        ledger.roll();
        ledger.appended(MIB, [rank]);

        ledger.based(rank, &base(0, 1, 10));

        assert_eq!(ledger.pass(), [0; 0]);
        assert_eq!(ledger.due(), Some(rank));
    }
}
