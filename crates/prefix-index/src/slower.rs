//! The part of a lookup that goes slot by slot: holes, and blocks that are not in GPU memory.

use domain::Depths;

use crate::answer::{Found, Slower, Walk};
use crate::arena::{Arena, WORDS, word};
use crate::run::{Entries, Entry, Part, View};

/// How many of a run's first blocks a slot holds: in GPU memory, in that or host memory, in any tier.
type Leads = [u32; 3];

/// The tiers that count for each of [`Leads`].
const COUNTED: [u8; 3] = [0b001, 0b011, 0b111];

/// Takes the first `matched` blocks of a run for the slots that hold parts of it and those that live on
/// through slower tiers.
pub(crate) fn pass_slowly(
    view: &View,
    entries: Entries<'_>,
    arena: &Arena,
    matched: u32,
    walk: &mut Walk,
    found: &mut Found,
) {
    let before = std::mem::take(&mut walk.slower);
    let mut index = view.prefixes;
    let end = view.prefixes + view.parts;
    while index < end {
        let Entry::Part(first) = entries.get(index) else {
            return;
        };
        let mut leads = [0; 3];
        while index < end
            && let Entry::Part(part) = entries.get(index)
            && part.slot == first.slot
        {
            extend(&mut leads, part);
            index += 1;
        }
        let (at, bit) = (first.slot as usize / 64, 1_u64 << (first.slot % 64));
        if walk.alive.get(at).is_some_and(|it| it & bit != 0) {
            walk.alive[at] &= !bit;
            if matched <= leads[0] {
                walk.next[at] |= bit;
            } else {
                let slower = Slower {
                    slot: first.slot,
                    gpu: view.start + leads[0],
                    host: None,
                };
                go_on(slower, leads, (view.start, matched), walk, found);
            }
        }
        if let Some(slower) = before.iter().find(|it| it.slot == first.slot) {
            go_on(*slower, leads, (view.start, matched), walk, found);
        }
    }
    let is_part = |slot: u32| {
        (view.prefixes..end)
            .any(|it| matches!(entries.get(it), Entry::Part(part) if part.slot == slot))
    };
    for slower in before.iter().filter(|it| !is_part(it.slot)) {
        let cut = prefix_of(view, entries, arena, slower.slot);
        go_on(*slower, [cut; 3], (view.start, matched), walk, found);
    }
}

fn extend(leads: &mut Leads, part: Part) {
    for (lead, counted) in leads.iter_mut().zip(COUNTED) {
        if part.start == *lead && part.tiers.0 & counted != 0 {
            *lead = part.end;
        }
    }
}

/// Lets a slot live on, or answers it.
fn go_on(
    slower: Slower,
    leads: Leads,
    (start, matched): (u32, u32),
    walk: &mut Walk,
    found: &mut Found,
) {
    let host = match slower.host {
        Some(ended) => Some(ended),
        None if matched <= leads[1] => None,
        None => Some(start + leads[1]),
    };
    if matched <= leads[2] {
        walk.slower.push(Slower { host, ..slower });
        return;
    }
    let disk = start + leads[2];
    let depths = Depths {
        gpu: slower.gpu,
        host: host.unwrap_or(disk),
        disk,
    };
    found.add(depths, slower.slot);
}

fn prefix_of(view: &View, entries: Entries<'_>, arena: &Arena, slot: u32) -> u32 {
    let (at, bit) = (slot as usize / 64, 1_u64 << (slot % 64));
    for index in 0..view.prefixes {
        match entries.get(index) {
            Entry::One { cut, slot: one } if one == slot => return cut,
            Entry::Many { cut, words, line } if at < words as usize => {
                let lines = arena.lines(line, (words as usize).div_ceil(WORDS));
                if lines.is_some_and(|it| word(it, at) & bit != 0) {
                    return cut;
                }
            }
            _ => {}
        }
    }
    0
}
