//! What engines call the blocks.
//!
//! Targets that use the same names form a domain. In the canonical one a block's name is its sequence hash,
//! and takes no memory but its entry in the domain's table. Any other domain has a column of names beside a
//! run. A name stands for one block of its domain at most; what does not fit that, an odd name, is kept by
//! its target itself.

use std::ops::Range;

use crate::arena::{Arena, Space, word};
use crate::board::Secrets;
use crate::forest::{Forest, place};
use crate::rank::OddName;
use crate::run::{Tiers, View};
use crate::table::{Place, Table};

/// The domain whose names are sequence hashes.
pub(crate) const CANONICAL: u32 = 0;
/// Bits of the parts of a domain's table.
const CANONICAL_PARTS: u32 = if cfg!(all(loom, test)) { 0 } else { 10 };
const FOREIGN_PARTS: u32 = if cfg!(all(loom, test)) { 0 } else { 8 };
/// Names whose slots are read ahead of their use.
const TOUCHED: usize = 64;

#[derive(Debug)]
pub(crate) struct Domains {
    domains: Vec<Option<Domain>>,
    free: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct Domain {
    table: Table,
    /// The slots of its targets, a bit set.
    pub(crate) members: Vec<u64>,
}

/// Names of a run's blocks in one domain. 0 is none.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) domain: u32,
    names: Vec<u64>,
}

impl Column {
    /// Forgets the names from `end` on.
    pub(crate) fn trim(&mut self, end: usize) {
        self.names.truncate(end);
        if self.names.len() * 2 < self.names.capacity() {
            self.names.shrink_to_fit();
        }
    }

    fn get(&self, offset: usize) -> u64 {
        self.names.get(offset).copied().unwrap_or(0)
    }

    /// `len` is how many blocks the run has.
    fn set(&mut self, offset: usize, name: u64, len: usize) {
        if self.names.len() <= offset {
            let more = len.max(offset + 1) - self.names.len();
            if self.names.capacity() < self.names.len() + more {
                // Runs grow block by block: an eighth more, where a doubling would waste half.
                self.names.reserve_exact(more + self.names.len() / 8);
            }
            self.names.resize(offset + 1, 0);
        }
        self.names[offset] = name;
    }
}

impl Domains {
    pub(crate) fn new() -> Self {
        Self {
            domains: vec![Some(Domain::new(CANONICAL_PARTS))],
            free: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self) -> u32 {
        let domain = Some(Domain::new(FOREIGN_PARTS));
        match self.free.pop() {
            Some(number) => {
                self.domains[number as usize] = domain;
                number
            }
            None => {
                self.domains.push(domain);
                self.domains.len() as u32 - 1
            }
        }
    }

    /// The foreign domain that has been there longest.
    pub(crate) fn first_foreign(&self) -> Option<u32> {
        let mut rest = self.domains.iter().skip(1);
        rest.position(Option::is_some).map(|it| it as u32 + 1)
    }

    pub(crate) fn at(&self, number: u32) -> &Domain {
        let domain = self.domains[number as usize].as_ref();
        domain.expect("a domain with members is there")
    }

    pub(crate) fn join(&mut self, number: u32, slot: u32) {
        let domain = self.domains[number as usize].as_mut();
        let members = &mut domain
            .expect("a domain is joined while it is there")
            .members;
        let index = slot as usize / 64;
        if members.len() <= index {
            members.resize(index + 1, 0);
        }
        members[index] |= 1 << (slot % 64);
    }

    /// Takes out a slot that holds nothing.
    pub(crate) fn leave(&mut self, number: u32, slot: u32) {
        let Some(domain) = &mut self.domains[number as usize] else {
            return;
        };
        domain.members[slot as usize / 64] &= !(1 << (slot % 64));
        if number != CANONICAL && domain.members.iter().all(|it| *it == 0) {
            debug_assert_eq!(domain.table.len(), 0, "nobody holds what it names");
            self.domains[number as usize] = None;
            self.free.push(number);
        }
    }

    /// Names in all domains.
    pub(crate) fn names(&self) -> u64 {
        self.domains.iter().flatten().map(|it| it.table.len()).sum()
    }
}

impl Domain {
    fn new(part_bits: u32) -> Self {
        Self {
            table: Table::new(part_bits),
            members: Vec::new(),
        }
    }

    /// Whether `more` names have room.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.table.has_room(more)
    }

    fn remove(
        &self,
        (arena, space, secrets): (&Arena, &mut Space, &Secrets),
        name: u64,
        at: Place,
    ) {
        self.table.remove(arena, space, secrets.name(name), at);
    }
}

impl Forest {
    /// The block that `domain` calls `name`.
    pub(crate) fn named(&self, domain: u32, name: u64) -> Option<Place> {
        let board = &*self.board;
        let table = &self.domains.at(domain).table;
        let found = table.find(&board.lines, board.secrets.name(name), |at| {
            self.written(domain, at) == name
        });
        found.expect("nobody else writes")
    }

    /// Reads ahead where `names` belong.
    pub(crate) fn touch(&self, domain: u32, names: impl Iterator<Item = u64>) {
        let board = &*self.board;
        let table = &self.domains.at(domain).table;
        let mut hashes = [0; TOUCHED];
        let mut count = 0;
        for (hash, name) in hashes.iter_mut().zip(names) {
            *hash = board.secrets.name(name);
            count += 1;
        }
        table.touch_all(&board.lines, &hashes[..count]);
    }

    /// What the columns say `domain` calls the block at `at`, whether or not it is used; 0 is nothing.
    fn written(&self, domain: u32, at: Place) -> u64 {
        if domain == CANONICAL {
            return self.sequence_at(at);
        }
        let column = self.column(domain, at.run);
        column.map_or(0, |it| it.get(at.offset as usize))
    }

    /// What the members of `domain` that hold the block at `at` call it, unless they say otherwise.
    pub(crate) fn usual_name(&self, domain: u32, at: Place) -> Option<u64> {
        if domain == CANONICAL && self.info[at.run as usize].unnamed.contains(&at.offset) {
            return None;
        }
        Some(self.written(domain, at)).filter(|it| *it != 0)
    }

    /// The names of a block that is not odd, of a target of `domain` that holds it in `tiers`.
    pub(crate) fn usual(&self, domain: Option<u32>, at: Place, tiers: Tiers) -> Vec<OddName> {
        let name = domain.and_then(|it| self.usual_name(it, at));
        name.map(|it| OddName::usual(it, tiers))
            .into_iter()
            .collect()
    }

    fn column(&self, domain: u32, run: u32) -> Option<&Column> {
        let columns = &self.info[run as usize].columns;
        let at = columns.binary_search_by_key(&domain, |it| it.domain).ok()?;
        Some(&columns[at])
    }

    /// How many of the first of `names` are what the members of `domain` call the blocks from `at` on.
    pub(crate) fn agreeing(&self, domain: u32, at: Place, names: &[u64]) -> usize {
        let from = at.offset as usize;
        if domain != CANONICAL {
            let Some(column) = self.column(domain, at.run) else {
                return 0;
            };
            let written = column.names.get(from..).unwrap_or_default();
            let pairs = names.iter().zip(written);
            return pairs
                .take_while(|(name, it)| name == it && **it != 0)
                .count();
        }
        let view = self.view(at.run);
        let sequences = view.sequences(&self.board.lines).expect("the writer's own");
        let unnamed = &self.info[at.run as usize].unnamed;
        let offsets = from..view.len;
        let pairs = names.iter().zip(offsets);
        let agree = pairs.take_while(|(name, offset)| {
            **name == word(sequences, *offset)
                && **name != 0
                && (unnamed.is_empty() || !unnamed.contains(&(*offset as u16)))
        });
        agree.count()
    }

    /// As [`Self::agreeing`], for the blocks from `at` on towards the run's first.
    pub(crate) fn agreeing_down(&self, domain: u32, at: Place, names: &[u64]) -> usize {
        let offsets = (0..=at.offset as usize).rev();
        let pairs = names.iter().zip(offsets);
        if domain != CANONICAL {
            let Some(column) = self.column(domain, at.run) else {
                return 0;
            };
            let agree = pairs.take_while(|(name, it)| **name != 0 && **name == column.get(*it));
            return agree.count();
        }
        let view = self.view(at.run);
        let sequences = view.sequences(&self.board.lines).expect("the writer's own");
        let unnamed = &self.info[at.run as usize].unnamed;
        let agree = pairs.take_while(|(name, offset)| {
            **name == word(sequences, *offset)
                && **name != 0
                && (unnamed.is_empty() || !unnamed.contains(&(*offset as u16)))
        });
        agree.count()
    }

    /// Makes sure that the canonical names of `range` stand for its blocks, where no member of the domain
    /// holds them yet. Where a name stands for another block, this one is noted as unnamed.
    pub(crate) fn name_canonically(&mut self, run: u32, range: Range<usize>) {
        let view = self.view(run);
        let reach = self.reach(&view, &self.domains.at(CANONICAL).members);
        let range = range.start.max(reach.cut)..range.end;
        if !reach.parts {
            self.name_new(run, range);
            return;
        }
        for offset in range {
            let members = &self.domains.at(CANONICAL).members;
            if !self.is_part_of(&view, members, offset) {
                self.name_new(run, offset..offset + 1);
            }
        }
    }

    /// As [`Self::name_canonically`], for blocks that no member of the domain held before.
    pub(crate) fn name_new(&mut self, run: u32, range: Range<usize>) {
        let board = self.board.clone();
        let view = self.view(run);
        let sequences = view.sequences(&board.lines).expect("the writer's own");
        let table = &self.domains.at(CANONICAL).table;
        // A sequence hash is another block's too only in another namespace.
        let alone = self.namespaces.len() == 1;
        for from in range.clone().step_by(TOUCHED) {
            let some = from..range.end.min(from + TOUCHED);
            let mut hashes = [0; TOUCHED];
            for (hash, offset) in hashes.iter_mut().zip(some.clone()) {
                *hash = board.secrets.name(word(sequences, offset));
            }
            table.touch_all(&board.lines, &hashes[..some.len()]);
            for (hash, offset) in hashes.into_iter().zip(some) {
                let name = word(sequences, offset);
                let at = place(run, offset);
                let is_same = |at: Place| {
                    let view = View::read(&board.runs.own(at.run, 1)[0]);
                    view.sequence(&board.lines, at.offset as usize) == Some(name)
                };
                let lines = &mut self.lines;
                if name == 0 {
                    self.info[run as usize].unnamed.push(offset as u16);
                } else if alone {
                    table.insert(&board.lines, lines, hash, at);
                } else if !table.insert_unless(&board.lines, lines, (hash, at), is_same) {
                    self.info[run as usize].unnamed.push(offset as u16);
                }
            }
        }
    }

    /// Makes `names` stand for the blocks from `at` on in a foreign domain, as far as they have no names there
    /// and the names stand for nothing else. Answers how many do now.
    pub(crate) fn name_as(&mut self, domain: u32, at: Place, names: &[u64]) -> usize {
        let len = self.view(at.run).len;
        let from = at.offset as usize;
        let columns = &mut self.info[at.run as usize].columns;
        let index = columns
            .binary_search_by_key(&domain, |it| it.domain)
            .unwrap_or_else(|index| {
                let names = Vec::new();
                columns.insert(index, Column { domain, names });
                index
            });
        let mut named = 0;
        while named < names.len() {
            if named % TOUCHED == 0 {
                self.touch(domain, names[named..].iter().copied());
            }
            let (offset, name) = (from + named, names[named]);
            if self.info[at.run as usize].columns[index].get(offset) != 0
                || !self.give_name(domain, place(at.run, offset), name)
            {
                break;
            }
            self.info[at.run as usize].columns[index].set(offset, name, len);
            named += 1;
        }
        let columns = &mut self.info[at.run as usize].columns;
        if columns[index].names.is_empty() {
            columns.remove(index);
        }
        named
    }

    /// A foreign domain that calls the block at `at` `name`.
    pub(crate) fn foreign_domain_of(&self, at: Place, name: u64) -> Option<u32> {
        let columns = &self.info[at.run as usize].columns;
        let agrees = columns.iter().find(|it| it.get(at.offset as usize) == name);
        agrees.filter(|_| name != 0).map(|it| it.domain)
    }

    fn give_name(&mut self, domain: u32, at: Place, name: u64) -> bool {
        if name == 0 {
            return false;
        }
        let board = self.board.clone();
        let mut space = std::mem::replace(&mut self.lines, Space::new());
        let hash = board.secrets.name(name);
        let table = &self.domains.at(domain).table;
        let is_same = |at: Place| self.written(domain, at) == name;
        let named = table.insert_unless(&board.lines, &mut space, (hash, at), is_same);
        self.lines = space;
        named
    }

    /// Takes the names of those blocks of `range` back that no member of `domain` holds.
    pub(crate) fn unname(&mut self, domain: u32, run: u32, range: Range<usize>) {
        let view = self.view(run);
        let members = &self.domains.at(domain).members;
        let reach = self.reach(&view, members);
        let range = range.start.max(reach.cut)..range.end;
        if range.is_empty() {
            return;
        }
        if domain == CANONICAL && !reach.parts && self.info[run as usize].unnamed.is_empty() {
            self.unname_all(run, &view, range);
            return;
        }
        for offset in range {
            let members = &self.domains.at(domain).members;
            if reach.parts && self.is_part_of(&view, members, offset) {
                continue;
            }
            self.take_name(domain, place(run, offset));
        }
        let columns = &mut self.info[run as usize].columns;
        if let Ok(index) = columns.binary_search_by_key(&domain, |it| it.domain)
            && columns[index].names.iter().all(|it| *it == 0)
        {
            columns.remove(index);
        }
    }

    /// Takes the canonical names of all of `range` back.
    fn unname_all(&mut self, run: u32, view: &View, range: Range<usize>) {
        let board = &*self.board;
        let sequences = view.sequences(&board.lines).expect("the writer's own");
        let table = &self.domains.at(CANONICAL).table;
        for from in range.clone().step_by(TOUCHED) {
            let some = from..range.end.min(from + TOUCHED);
            let mut hashes = [0; TOUCHED];
            for (hash, offset) in hashes.iter_mut().zip(some.clone()) {
                *hash = board.secrets.name(word(sequences, offset));
            }
            table.touch_all(&board.lines, &hashes[..some.len()]);
            for (hash, offset) in hashes.iter().zip(some) {
                table.remove(&board.lines, &mut self.lines, *hash, place(run, offset));
            }
        }
    }

    fn take_name(&mut self, domain: u32, at: Place) {
        let info = &mut self.info[at.run as usize];
        if let Some(index) = info
            .unnamed
            .iter()
            .position(|it| domain == CANONICAL && *it == at.offset)
        {
            info.unnamed.swap_remove(index);
            return;
        }
        let name = self.written(domain, at);
        if name == 0 {
            return;
        }
        let board = self.board.clone();
        let memory = (&board.lines, &mut self.lines, &board.secrets);
        self.domains.at(domain).remove(memory, name, at);
        let columns = &mut self.info[at.run as usize].columns;
        if let Ok(index) = columns.binary_search_by_key(&domain, |it| it.domain) {
            columns[index].names[at.offset as usize] = 0;
        }
    }
}
