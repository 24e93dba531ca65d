//! Changing what one slot holds of a run: piece by piece in a copy, which is written back when another run is
//! turned to, or when the operation ends. So however many holes an operation makes or fills, the list of those
//! who hold the run is gone through once.

use std::ops::Range;

use crate::forest::Forest;
use crate::holders::Hold;
use crate::run::{NO_RUN, Part, Tiers, View, WHOLE};
use crate::table::Place;

/// What one slot holds of a run, while it is changed.
#[derive(Debug)]
pub(crate) struct Editing {
    /// [`NO_RUN`] while nothing is.
    run: u32,
    slot: u32,
    hold: Hold,
    is_changed: bool,
}

/// What [`Forest::cover`] found and left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    /// Blocks of the range that the slot held before, in any tier.
    pub(crate) held: u32,
    /// Whether it held any of the run before, and holds any now.
    pub(crate) had_any: bool,
    pub(crate) has_any: bool,
}

impl Editing {
    pub(crate) const fn nothing() -> Self {
        Self {
            run: NO_RUN,
            slot: 0,
            hold: Hold::Nothing,
            is_changed: false,
        }
    }
}

impl Forest {
    /// The stretch of `run` around `offset` that `slot` holds in the same tiers, or lacks. It ends with the run
    /// at the latest.
    pub(crate) fn stretch_at(&mut self, run: u32, slot: u32, offset: usize) -> (Range<u32>, Tiers) {
        let len = self.view(run).len as u32;
        let offset = offset as u32;
        match self.hold_mut(run, slot) {
            Hold::Nothing => (0..len, Tiers::NONE),
            Hold::Prefix(cut) if offset < *cut => (0..len.min(*cut), Tiers::GPU),
            Hold::Prefix(cut) => (*cut..len, Tiers::NONE),
            Hold::Parts(parts) => {
                let next = parts.partition_point(|it| it.end <= offset);
                let start = next.checked_sub(1).map_or(0, |it| parts[it].end);
                match parts.get(next) {
                    Some(part) if part.start <= offset => (part.range(), part.tiers),
                    Some(part) => (start..part.start, Tiers::NONE),
                    None => (start..len, Tiers::NONE),
                }
            }
        }
    }

    /// The tiers in which `slot` has the block at `at`.
    pub(crate) fn tiers_at(&self, at: Place, slot: u32) -> Tiers {
        let offset = at.offset.into();
        if self.editing.run != at.run || self.editing.slot != slot {
            return self.tiers_of(&self.view(at.run), slot, offset);
        }
        match &self.editing.hold {
            Hold::Prefix(cut) if offset < *cut as usize => Tiers::GPU,
            Hold::Nothing | Hold::Prefix(_) => Tiers::NONE,
            Hold::Parts(parts) => {
                let next = parts.partition_point(|it| it.end as usize <= offset);
                let part = parts.get(next).filter(|it| it.start as usize <= offset);
                part.map_or(Tiers::NONE, |it| it.tiers)
            }
        }
    }

    /// Makes `slot` hold `range` of `run` in exactly `tiers`. [`Forest::flush`] is to follow.
    pub(crate) fn cover(
        &mut self,
        run: u32,
        slot: u32,
        range: Range<usize>,
        tiers: Tiers,
    ) -> Covered {
        let len = self.view(run).len as u32;
        let (from, to) = (range.start as u32, range.end as u32);
        let hold = self.hold_mut(run, slot);
        let had_any = *hold != Hold::Nothing;
        let held = match *hold {
            Hold::Nothing if tiers == Tiers::NONE => 0,
            Hold::Nothing if tiers == Tiers::GPU && from == 0 => {
                *hold = prefix(to, len);
                0
            }
            Hold::Prefix(cut) if tiers == Tiers::GPU && from <= cut.min(len) => {
                let cut = cut.min(len);
                *hold = prefix(cut.max(to), len);
                cut.min(to) - from
            }
            Hold::Prefix(cut) if tiers == Tiers::NONE && cut.min(len) <= to => {
                let cut = cut.min(len);
                *hold = prefix(cut.min(from), len);
                cut.saturating_sub(from)
            }
            _ => {
                let mut parts = as_parts(hold, slot, len);
                let held = replace(&mut parts, slot, from..to, tiers);
                *hold = as_hold(parts, len);
                held
            }
        };
        let has_any = *hold != Hold::Nothing;
        self.editing.is_changed = true;
        Covered {
            held,
            had_any,
            has_any,
        }
    }

    /// Writes back what has been changed.
    pub(crate) fn flush(&mut self) {
        let edited = std::mem::replace(&mut self.editing, Editing::nothing());
        if edited.is_changed {
            self.set_hold(edited.run, edited.slot, edited.hold);
            self.settle(edited.run);
        }
    }

    /// What `slot` holds of `run`, to be changed.
    fn hold_mut(&mut self, run: u32, slot: u32) -> &mut Hold {
        if self.editing.run != run || self.editing.slot != slot {
            self.flush();
            let hold = self.hold_of(&self.view(run), slot);
            self.editing = Editing {
                run,
                slot,
                hold,
                is_changed: false,
            };
        }
        &mut self.editing.hold
    }

    /// The stretches of a run that `slot` holds, and in which tiers.
    pub(crate) fn stretches(&self, view: &View, slot: u32) -> Vec<(Range<usize>, Tiers)> {
        match self.hold_of(view, slot) {
            Hold::Nothing => Vec::new(),
            Hold::Prefix(cut) => vec![(0..view.len.min(cut as usize), Tiers::GPU)],
            Hold::Parts(parts) => {
                let stretch = |it: &Part| (it.start as usize..it.end as usize, it.tiers);
                parts.iter().map(stretch).collect()
            }
        }
    }
}

/// The hold of the first `cut` blocks of a run of `len`.
fn prefix(cut: u32, len: u32) -> Hold {
    match cut {
        0 => Hold::Nothing,
        cut if cut == len => Hold::Prefix(WHOLE),
        cut => Hold::Prefix(cut),
    }
}

/// Takes the parts that `hold` consists of out of it.
fn as_parts(hold: &mut Hold, slot: u32, len: u32) -> Vec<Part> {
    match std::mem::replace(hold, Hold::Nothing) {
        Hold::Nothing => Vec::new(),
        Hold::Prefix(cut) => vec![Part {
            slot,
            start: 0,
            end: len.min(cut),
            tiers: Tiers::GPU,
        }],
        Hold::Parts(parts) => parts,
    }
}

fn as_hold(parts: Vec<Part>, len: u32) -> Hold {
    match parts[..] {
        [] => Hold::Nothing,
        [
            Part {
                start: 0,
                end,
                tiers: Tiers::GPU,
                ..
            },
        ] => prefix(end, len),
        _ => Hold::Parts(parts),
    }
}

/// Makes `parts` have `range` in exactly `tiers`. Answers how many blocks of it they had.
fn replace(parts: &mut Vec<Part>, slot: u32, range: Range<u32>, tiers: Tiers) -> u32 {
    let Range { start, end } = range;
    // Those that meet the range, and those that it may join.
    let first = parts.partition_point(|it| it.end < start);
    let after = first + parts[first..].partition_point(|it| it.start <= end);
    let mut pieces: Vec<Part> = Vec::with_capacity(3);
    let mut add = |start: u32, end: u32, tiers: Tiers| {
        if end <= start || tiers == Tiers::NONE {
            return;
        }
        match pieces.last_mut() {
            Some(last) if last.end == start && last.tiers == tiers => last.end = end,
            _ => pieces.push(Part {
                slot,
                start,
                end,
                tiers,
            }),
        }
    };
    let met = &parts[first..after];
    let held = met.iter().map(|it| it.shared_with(start, end)).sum();
    for part in met {
        add(part.start, part.end.min(start), part.tiers);
    }
    add(start, end, tiers);
    for part in met {
        add(part.start.max(end), part.end, part.tiers);
    }
    parts.splice(first..after, pieces);
    held
}

impl Part {
    /// How many of its blocks lie from `from` to before `to`.
    fn shared_with(self, from: u32, to: u32) -> u32 {
        self.end.min(to).saturating_sub(self.start.max(from))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each block's tiers.
    fn spread(parts: &[Part]) -> Vec<u8> {
        let mut tiers = vec![0; 12];
        for part in parts {
            (part.start..part.end).for_each(|it| tiers[it as usize] = part.tiers.0);
        }
        tiers
    }

    #[test]
    fn parts_are_replaced_as_block_by_block() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = |bound: u32| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 24) as u32 % bound
        };
        let mut parts = Vec::new();
        for _ in 0..20_000 {
            let start = below(12);
            let end = start + 1 + below(12 - start);
            let tiers = Tiers(below(4) as u8);
            let mut right = spread(&parts);
            let range = &mut right[start as usize..end as usize];
            let had = range.iter().filter(|it| **it != 0).count();
            range.fill(tiers.0);

            let held = replace(&mut parts, 1, start..end, tiers);

            assert_eq!((spread(&parts), held as usize), (right, had));
            let joined = |pair: &[Part]| {
                pair[1].start < pair[0].end
                    || pair[0].end == pair[1].start && pair[0].tiers == pair[1].tiers
            };
            assert!(!parts.windows(2).any(joined), "{parts:?}");
        }
    }
}
