//! Who holds what of a run, as the writer reads and changes it.

use std::ops::Range;

use crate::arena::word;
use crate::forest::Forest;
use crate::list::{cut_of, has, is_in, set_lines};
use crate::run::{Entries, Entry, MAX_PARTS, Part, Tiers, VERSION, View, WHOLE};
use crate::sync::{begin_write, end_write};

/// What one slot holds of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Nothing,
    /// The first blocks, in GPU memory: so many, or [`WHOLE`].
    Prefix(u32),
    /// Anything else, ascending, not empty.
    Parts(Vec<Part>),
}

/// How far some slots' holds of a run reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// One of them holds so many of the first blocks.
    pub(crate) cut: usize,
    /// Whether one of them holds parts.
    pub(crate) parts: bool,
}

impl Forest {
    /// What `slot` holds of the run that `view` shows.
    pub(crate) fn hold_of(&self, view: &View, slot: u32) -> Hold {
        if let Some(cut) = self.prefix_of(view, slot) {
            return Hold::Prefix(cut);
        }
        let entries = view.entries(&self.board.lines).expect("the writer's own");
        let end = view.prefixes + view.parts;
        let first = first_part(view, entries, (slot, 0));
        let mut own = Vec::new();
        for index in first..end {
            match entries.get(index) {
                Entry::Part(part) if part.slot == slot => own.push(part),
                _ => break,
            }
        }
        if own.is_empty() {
            return Hold::Nothing;
        }
        Hold::Parts(own)
    }

    /// The tiers in which `slot` has the block at `offset`.
    pub(crate) fn tiers_of(&self, view: &View, slot: u32, offset: usize) -> Tiers {
        let entries = view.entries(&self.board.lines).expect("the writer's own");
        if let Some(cut) = self.prefix_of(view, slot) {
            return if offset < cut as usize {
                Tiers::GPU
            } else {
                Tiers::NONE
            };
        }
        let after = first_part(view, entries, (slot, offset as u32 + 1));
        match after.checked_sub(1).map(|it| entries.get(it)) {
            Some(Entry::Part(part)) if part.slot == slot && (offset as u32) < part.end => {
                part.tiers
            }
            _ => Tiers::NONE,
        }
    }

    /// How many of the first blocks `slot` holds, or [`WHOLE`], if that is all it holds.
    #[inline]
    fn prefix_of(&self, view: &View, slot: u32) -> Option<u32> {
        let arena = &self.board.lines;
        let entries = view.entries(arena).expect("the writer's own");
        for index in 0..view.prefixes {
            match entries.get(index) {
                Entry::One { cut, slot: one } if one == slot => return Some(cut),
                Entry::Many { cut, words, line } if has(arena, (line, words), slot) => {
                    return Some(cut);
                }
                _ => {}
            }
        }
        None
    }

    /// Whether `slot` holds all of the run, however it grows.
    pub(crate) fn holds_all(&self, view: &View, slot: u32) -> bool {
        self.prefix_of(view, slot) == Some(WHOLE)
    }

    /// Makes `slot` hold exactly `hold` of `run`.
    pub(crate) fn set_hold(&mut self, run: u32, slot: u32, hold: Hold) {
        let Self {
            board,
            lines,
            list,
            crowded,
            ..
        } = self;
        let header = &board.runs.own(run, 1)[0];
        let mut view = View::read(header);
        list.load(&view, &board.lines);
        begin_write(header.atomic(VERSION));
        list.take_out(&board.lines, lines, slot);
        match hold {
            Hold::Nothing => {}
            Hold::Prefix(cut) => list.put_in(&board.lines, lines, slot, cut),
            Hold::Parts(parts) => {
                let at = list.parts.partition_point(|it| it.slot < slot);
                list.parts.splice(at..at, parts);
            }
        }
        list.store(&mut view, header, &board.lines, lines);
        end_write(header.atomic(VERSION));
        if MAX_PARTS < view.parts && !crowded.contains(&run) {
            crowded.push(run);
        }
    }

    /// Makes those who hold all of `run`, however it grows, hold what it has now.
    pub(crate) fn end_holds(&mut self, run: u32) {
        let Self {
            board, lines, list, ..
        } = self;
        let header = &board.runs.own(run, 1)[0];
        let mut view = View::read(header);
        list.load(&view, &board.lines);
        begin_write(header.atomic(VERSION));
        list.end_whole(&board.lines, lines, view.len as u32);
        list.store(&mut view, header, &board.lines, lines);
        end_write(header.atomic(VERSION));
    }

    /// How many blocks of the run that `view` shows lie before the end of what anybody holds.
    pub(crate) fn held_to(&self, view: &View) -> usize {
        let entries = view.entries(&self.board.lines).expect("the writer's own");
        let mut end = match (view.prefixes, entries) {
            (0, _) => 0,
            _ => cut_of(entries.get(0)) as usize,
        };
        for index in view.prefixes..view.prefixes + view.parts {
            if let Entry::Part(part) = entries.get(index) {
                end = end.max(part.end as usize);
            }
        }
        end.min(view.len)
    }

    /// How far those of `slots`, a bit set, reach.
    pub(crate) fn reach(&self, view: &View, slots: &[u64]) -> Reach {
        let arena = &self.board.lines;
        let entries = view.entries(arena).expect("the writer's own");
        let counts = |slot: u32| is_in(slots, slot);
        let mut reach = Reach {
            cut: 0,
            parts: false,
        };
        for index in 0..view.prefixes {
            let any = match entries.get(index) {
                Entry::One { slot, .. } => counts(slot),
                Entry::Many { words, line, .. } => {
                    let lines = set_lines(arena, (line, words));
                    (0..words as usize).any(|index| {
                        let bits = word(lines, index) & slots.get(index).copied().unwrap_or(0);
                        bits != 0
                    })
                }
                Entry::Part(_) => false,
            };
            if any {
                reach.cut = view.len.min(cut_of(entries.get(index)) as usize);
                break;
            }
        }
        reach.parts = (view.prefixes..view.prefixes + view.parts)
            .any(|index| matches!(entries.get(index), Entry::Part(part) if counts(part.slot)));
        reach
    }

    /// Those of `runs` that `slot` holds something of, once each.
    pub(crate) fn held_by(&self, slot: u32, mut runs: Vec<u32>) -> Vec<u32> {
        runs.sort_unstable();
        runs.dedup();
        runs.retain(|run| self.hold_of(&self.view(*run), slot) != Hold::Nothing);
        runs
    }

    /// Whether one of `slots` holds `offset` as one of its parts.
    pub(crate) fn is_part_of(&self, view: &View, slots: &[u64], offset: usize) -> bool {
        let entries = view.entries(&self.board.lines).expect("the writer's own");
        (view.prefixes..view.prefixes + view.parts).any(|index| match entries.get(index) {
            Entry::Part(part) => is_in(slots, part.slot) && part.range().contains(&(offset as u32)),
            _ => false,
        })
    }

    /// Whether anybody but `slot` holds all of the run that `view` shows, however it grows.
    pub(crate) fn others_hold_all(&self, view: &View, slot: u32) -> bool {
        let arena = &self.board.lines;
        let entries = view.entries(arena).expect("the writer's own");
        (0..view.prefixes).any(|index| match entries.get(index) {
            Entry::One { cut, slot: one } => cut == WHOLE && one != slot,
            Entry::Many { cut, words, line } => {
                let lines = set_lines(arena, (line, words));
                let set = (0..words as usize).map(|index| word(lines, index));
                let count: u32 = set.map(u64::count_ones).sum();
                cut == WHOLE && u32::from(has(arena, (line, words), slot)) < count
            }
            Entry::Part(_) => false,
        })
    }
}

/// The first entry that is a part of a slot, from an offset on, or of a later slot.
fn first_part(view: &View, entries: Entries<'_>, from: (u32, u32)) -> usize {
    let (mut first, mut after) = (view.prefixes, view.prefixes + view.parts);
    while first < after {
        let middle = first.midpoint(after);
        match entries.get(middle) {
            Entry::Part(part) if (part.slot, part.start) < from => first = middle + 1,
            _ => after = middle,
        }
    }
    first
}

impl Part {
    pub(crate) const fn range(&self) -> Range<u32> {
        self.start..self.end
    }
}
