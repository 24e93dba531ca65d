//! A run's entries while they are changed, and the sets of slots that they point to.

use crate::arena::{Arena, Line, Space, WORDS, rounded, set_word, word};
use crate::run::{Entry, INLINE, LIST, Part, View, WHOLE};

/// As many slots with the same prefix as are worth a set.
const WORTH_A_SET: usize = 3;

/// A run's entries while they are changed.
#[derive(Debug, Default)]
pub(crate) struct List {
    prefixes: Vec<Entry>,
    pub(crate) parts: Vec<Part>,
}

impl List {
    /// Makes the slots with all blocks have the first `len`.
    pub(crate) fn end_whole(&mut self, arena: &Arena, space: &mut Space, len: u32) {
        let whole = self.prefixes.partition_point(|it| len < cut_of(*it));
        let meets = self.prefixes.get(whole).copied();
        if meets.is_some_and(|it| cut_of(it) == len) {
            // The run was longer and has been trimmed to what they hold: they join.
            for slot in slots_of(&self.prefixes[..whole], arena) {
                self.take_out(arena, space, slot);
                self.put_in(arena, space, slot, len);
            }
            return;
        }
        for entry in &mut self.prefixes {
            match entry {
                Entry::One { cut, .. } | Entry::Many { cut, .. } if *cut == WHOLE => *cut = len,
                _ => {}
            }
        }
    }

    pub(crate) fn load(&mut self, view: &View, arena: &Arena) {
        let entries = view.entries(arena).expect("the writer's own");
        self.prefixes.clear();
        self.parts.clear();
        for index in 0..view.prefixes + view.parts {
            match entries.get(index) {
                Entry::Part(part) => self.parts.push(part),
                prefix => self.prefixes.push(prefix),
            }
        }
    }

    pub(crate) fn take_out(&mut self, arena: &Arena, space: &mut Space, slot: u32) {
        self.parts.retain(|it| it.slot != slot);
        let at = self.prefixes.iter().position(|entry| match *entry {
            Entry::One { slot: one, .. } => one == slot,
            Entry::Many { words, line, .. } => has(arena, (line, words), slot),
            Entry::Part(_) => false,
        });
        let Some(at) = at else {
            return;
        };
        if let Entry::Many { words, line, .. } = self.prefixes[at] {
            let lines = set_lines(arena, (line, words));
            let index = slot as usize / 64;
            set_word(lines, index, word(lines, index) & !(1 << (slot % 64)));
            if (0..words as usize).any(|index| word(lines, index) != 0) {
                return;
            }
            space.give(line, lines.len());
        }
        self.prefixes.remove(at);
    }

    pub(crate) fn put_in(&mut self, arena: &Arena, space: &mut Space, slot: u32, cut: u32) {
        let at = self.prefixes.partition_point(|it| cut < cut_of(*it));
        let same = self.prefixes[at..]
            .iter()
            .take_while(|it| cut_of(**it) == cut);
        let same = at..at + same.count();
        let set = same
            .clone()
            .find(|at| matches!(self.prefixes[*at], Entry::Many { .. }));
        if let Some(at) = set {
            let Entry::Many { words, line, .. } = self.prefixes[at] else {
                unreachable!("it was just found to be a set");
            };
            let (line, words) = add(arena, space, (line, words), slot);
            self.prefixes[at] = Entry::Many { cut, words, line };
        } else if same.len() + 1 < WORTH_A_SET {
            self.prefixes.insert(at, Entry::One { cut, slot });
        } else {
            let mut set = add(arena, space, (0, 0), slot);
            for entry in self.prefixes.drain(same) {
                if let Entry::One { slot, .. } = entry {
                    set = add(arena, space, set, slot);
                }
            }
            let (line, words) = set;
            self.prefixes.insert(at, Entry::Many { cut, words, line });
        }
    }

    pub(crate) fn store(&self, view: &mut View, header: &Line, arena: &Arena, space: &mut Space) {
        let count = self.prefixes.len() + self.parts.len();
        let needed = match count {
            0..=INLINE => 0,
            _ => rounded(count.div_ceil(WORDS)),
        };
        if needed != view.list_lines
            && (view.list_lines < needed || needed * 2 < view.list_lines || needed == 0)
        {
            if view.list_lines != 0 {
                space.give(view.list, view.list_lines);
            }
            view.list = if needed == 0 {
                0
            } else {
                space.take(arena, needed)
            };
            view.list_lines = needed;
        }
        let prefixes = self.prefixes.iter().map(|it| it.bits());
        let all = prefixes.chain(self.parts.iter().map(|it| Entry::Part(*it).bits()));
        if needed == 0 {
            all.enumerate()
                .for_each(|(index, bits)| header.set(LIST + index, bits));
        } else {
            let lines = arena.own(view.list, view.list_lines);
            all.enumerate()
                .for_each(|(index, bits)| set_word(lines, index, bits));
        }
        view.prefixes = self.prefixes.len();
        view.parts = self.parts.len();
        view.write_lists(header);
    }
}

pub(crate) fn cut_of(entry: Entry) -> u32 {
    match entry {
        Entry::One { cut, .. } | Entry::Many { cut, .. } => cut,
        Entry::Part(part) => part.end,
    }
}

fn slots_of(prefixes: &[Entry], arena: &Arena) -> Vec<u32> {
    let mut slots = Vec::new();
    for entry in prefixes {
        match *entry {
            Entry::One { slot, .. } => slots.push(slot),
            Entry::Many { words, line, .. } => {
                let all = 0..words * 64;
                slots.extend(all.filter(|slot| has(arena, (line, words), *slot)));
            }
            Entry::Part(_) => {}
        }
    }
    slots
}

pub(crate) fn set_lines(arena: &Arena, (line, words): (u32, u32)) -> &[Line] {
    arena.own(line, (words as usize).div_ceil(WORDS))
}

/// Whether the set at `line` of `words` words has `slot`.
pub(crate) fn has(arena: &Arena, set: (u32, u32), slot: u32) -> bool {
    slot / 64 < set.1 && word(set_lines(arena, set), slot as usize / 64) >> (slot % 64) & 1 == 1
}

/// Adds `slot` to a set of whole lines, which moves if it has no room. No lines are an empty set.
fn add(arena: &Arena, space: &mut Space, set: (u32, u32), slot: u32) -> (u32, u32) {
    let (mut line, mut words) = set;
    if words <= slot / 64 {
        let old = set_lines(arena, set);
        let lines = (slot as usize / 64 + 1).div_ceil(WORDS);
        let new = space.take(arena, lines);
        let into = arena.own(new, lines);
        for index in 0..lines * WORDS {
            let kept = if index < words as usize {
                word(old, index)
            } else {
                0
            };
            set_word(into, index, kept);
        }
        if words != 0 {
            space.give(line, old.len());
        }
        (line, words) = (new, (lines * WORDS) as u32);
    }
    let lines = set_lines(arena, (line, words));
    let index = slot as usize / 64;
    set_word(lines, index, word(lines, index) | 1 << (slot % 64));
    (line, words)
}

/// Whether a bit set has `slot`.
pub(crate) fn is_in(set: &[u64], slot: u32) -> bool {
    set.get(slot as usize / 64)
        .is_some_and(|it| it >> (slot % 64) & 1 == 1)
}
