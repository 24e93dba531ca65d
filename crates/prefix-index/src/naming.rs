//! What engines call the blocks.
//!
//! Targets that use the same names form a domain. In the canonical one a block's name is its sequence hash,
//! and takes no memory but its entry in the domain's table. Any other domain has a column of names beside a
//! run. A name stands for one block of its domain at most; what does not fit that, an odd name, is kept by
//! its target itself.
//!
//! A name stays with its block when the block is evicted, until the block goes or the name is wanted for another
//! one. So a name may lead to a block that the target does not hold, and whoever follows one has to look.

use std::collections::VecDeque;
use std::ops::Range;

use crate::arena::{Space, agreeing, word};
use crate::forest::{Forest, place};
use crate::rank::OddName;
use crate::run::{Tiers, View};
use crate::table::{AT_ONCE, Place, Table};

/// The domain whose names are sequence hashes.
pub(crate) const CANONICAL: u32 = 0;
/// Bits of the parts of a domain's table.
const CANONICAL_PARTS: u32 = if cfg!(all(loom, test)) { 0 } else { 10 };
const FOREIGN_PARTS: u32 = if cfg!(all(loom, test)) { 0 } else { 8 };

#[derive(Debug)]
pub(crate) struct Domains {
    domains: Vec<Option<Domain>>,
    free: Vec<u32>,
    /// Domains without members, whose columns are still beside some runs, and the next run to look at for the
    /// first of them.
    ended: VecDeque<u32>,
    next: usize,
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
    fn trim(&mut self, end: usize) {
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
            ended: VecDeque::new(),
            next: 0,
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
        let there = |it: &Option<Domain>| it.as_ref().is_some_and(|it| !it.has_ended());
        rest.position(there).map(|it| it as u32 + 1)
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

    /// Takes out a slot that holds nothing. The names of a domain without members go.
    pub(crate) fn leave(&mut self, number: u32, slot: u32, space: &mut Space) {
        let domain = self.domains[number as usize].as_mut();
        let domain = domain.expect("a domain with members is there");
        domain.members[slot as usize / 64] &= !(1 << (slot % 64));
        if number != CANONICAL && domain.has_ended() {
            domain.table.clear(space);
            self.ended.push_back(number);
        }
    }

    /// How many runs are still to be looked at for columns of domains that have ended, of so many.
    pub(crate) fn unswept(&self, runs: usize) -> usize {
        (self.ended.len() * runs).saturating_sub(self.next)
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

    /// Whether it has no members. The canonical one may have some again.
    fn has_ended(&self) -> bool {
        self.members.iter().all(|it| *it == 0)
    }

    /// Whether `more` names have room.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.table.has_room(more)
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
        let hashes = names.map(|it| board.secrets.name(it));
        self.domains.at(domain).table.touch(&board.lines, hashes);
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
        if domain == CANONICAL && self.unnamed.contains(&at) {
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
        let most = names.len().min(view.len - from);
        let same = agreeing(sequences, from, &names[..most]);
        let next = self.unnamed_in(at.run, from..from + same).next();
        next.map_or(same, |it| usize::from(it.offset) - from)
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
        let agree = pairs.take_while(|(name, offset)| {
            **name == word(sequences, *offset)
                && (self.unnamed.is_empty() || !self.unnamed.contains(&place(at.run, *offset)))
        });
        agree.count()
    }

    /// Makes sure that the canonical names of `range` stand for its blocks. Where a name stands for another block
    /// that is held, this one is noted as unnamed.
    pub(crate) fn name_canonically(&mut self, run: u32, range: Range<usize>) {
        let named = self.info[run as usize].named as usize;
        if named < range.end {
            self.info[run as usize].named = range.end as u16;
            self.name_new(run, named..range.end);
        }
        if self.unnamed.is_empty() {
            return;
        }
        let unnamed: Vec<Place> = self.unnamed_in(run, range).copied().collect();
        for at in unnamed {
            if self.claim(CANONICAL, at, self.sequence_at(at)) {
                self.unnamed.remove(&at);
            }
        }
    }

    /// Blocks of `range` whose sequence hash is the name of a block elsewhere.
    fn unnamed_in(&self, run: u32, range: Range<usize>) -> impl Iterator<Item = &Place> {
        self.unnamed
            .range(place(run, range.start)..place(run, range.end))
    }

    /// Names blocks that have no canonical names yet.
    fn name_new(&mut self, run: u32, range: Range<usize>) {
        let view = self.view(run);
        let Self {
            board,
            lines: space,
            domains,
            ..
        } = self;
        let sequences = view.sequences(&board.lines).expect("the writer's own");
        let names = range.clone().map(|it| word(sequences, it));
        // A sequence hash is another block's too only in another namespace.
        if self.namespaces.len() == 1 && names.clone().all(|it| it != 0) {
            let hashes = names.map(|it| board.secrets.name(it));
            let table = &domains.at(CANONICAL).table;
            table.insert_all(&board.lines, space, hashes, place(run, range.start));
            return;
        }
        for at in range.map(|offset| place(run, offset)) {
            if !self.claim(CANONICAL, at, self.sequence_at(at)) {
                self.unnamed.insert(at);
            }
        }
    }

    /// Makes `name` stand for the block at `at`, which has none, unless it stands for another that is held under
    /// it. Whether it does now.
    fn claim(&mut self, domain: u32, at: Place, name: u64) -> bool {
        if name == 0 {
            return false;
        }
        if let Some(other) = self.named(domain, name) {
            if self.is_held_in(domain, other) {
                return false;
            }
            self.take_name(domain, other);
        }
        let board = &*self.board;
        let table = &self.domains.at(domain).table;
        table.insert(&board.lines, &mut self.lines, board.secrets.name(name), at);
        true
    }

    /// Whether a member of `domain` holds the block at `at`.
    fn is_held_in(&mut self, domain: u32, at: Place) -> bool {
        self.flush();
        let view = self.view(at.run);
        let members = &self.domains.at(domain).members;
        let reach = self.reach(&view, members);
        let offset = at.offset as usize;
        offset < reach.cut || reach.parts && self.is_part_of(&view, members, offset)
    }

    /// Makes `names` stand for the blocks from `at` on in a foreign domain, as far as no member holds them under
    /// others or others under theirs. Answers how many do now.
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
            if named % AT_ONCE == 0 {
                self.touch(domain, names[named..].iter().take(AT_ONCE).copied());
            }
            let (offset, name) = (from + named, names[named]);
            let block = place(at.run, offset);
            let old = self.info[at.run as usize].columns[index].get(offset);
            if old != name || name == 0 {
                if old != 0 && self.is_held_in(domain, block) {
                    break;
                }
                if !self.claim(domain, block, name) {
                    break;
                }
                if old != 0 {
                    self.forget_name(domain, block, old);
                }
                self.info[at.run as usize].columns[index].set(offset, name, len);
            }
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
        let mut agree = columns.iter().filter(|it| {
            it.get(at.offset as usize) == name && !self.domains.at(it.domain).has_ended()
        });
        agree.next().filter(|_| name != 0).map(|it| it.domain)
    }

    /// Takes the name of a block away that no member of `domain` holds.
    fn take_name(&mut self, domain: u32, at: Place) {
        let name = self.written(domain, at);
        self.forget_name(domain, at, name);
        if domain == CANONICAL {
            self.unnamed.insert(at);
            return;
        }
        let columns = &mut self.info[at.run as usize].columns;
        if let Ok(index) = columns.binary_search_by_key(&domain, |it| it.domain) {
            columns[index].names[at.offset as usize] = 0;
        }
    }

    fn forget_name(&mut self, domain: u32, at: Place, name: u64) {
        let board = &*self.board;
        let table = &self.domains.at(domain).table;
        table.remove(&board.lines, &mut self.lines, board.secrets.name(name), at);
    }

    /// Takes the names of all blocks of `run` from `end` on away.
    pub(crate) fn unname_from(&mut self, run: u32, view: &View, end: usize) {
        let board = self.board.clone();
        let sequences = view.sequences(&board.lines).expect("the writer's own");
        let info = &mut self.info[run as usize];
        let named = end..info.named.into();
        info.named = info.named.min(end as u16);
        let mut columns = std::mem::take(&mut info.columns);
        let unnamed: Vec<Place> = self.unnamed_in(run, end..view.len).copied().collect();
        let name = |offset: usize| match unnamed.contains(&place(run, offset)) {
            true => 0,
            false => word(sequences, offset),
        };
        self.forget_names(CANONICAL, run, named, name);
        unnamed.iter().for_each(|at| {
            self.unnamed.remove(at);
        });
        for column in &mut columns {
            if !self.domains.at(column.domain).has_ended() {
                let named = end..column.names.len();
                self.forget_names(column.domain, run, named, |offset| column.get(offset));
            }
            column.trim(end);
        }
        columns.retain(|it| !it.names.is_empty());
        self.info[run as usize].columns = columns;
    }

    /// Takes the names of `range` out of the table, where they are not 0.
    fn forget_names(
        &mut self,
        domain: u32,
        run: u32,
        range: Range<usize>,
        name: impl Fn(usize) -> u64,
    ) {
        let board = &*self.board;
        let table = &self.domains.at(domain).table;
        for from in range.clone().step_by(AT_ONCE) {
            let some = from..range.end.min(from + AT_ONCE);
            let hash = |offset: usize| board.secrets.name(name(offset));
            table.touch(&board.lines, some.clone().map(hash));
            for offset in some.filter(|it| name(*it) != 0) {
                let at = place(run, offset);
                table.remove(&board.lines, &mut self.lines, hash(offset), at);
            }
        }
    }

    /// Looks at up to `budget` runs for columns of domains that have ended. Answers how many it has not.
    pub(crate) fn sweep_columns(&mut self, budget: usize) -> usize {
        let mut left = budget;
        while 0 < left {
            let Some(domain) = self.domains.ended.front().copied() else {
                break;
            };
            let Some(info) = self.info.get_mut(self.domains.next) else {
                self.domains.ended.pop_front();
                self.domains.next = 0;
                self.domains.domains[domain as usize] = None;
                self.domains.free.push(domain);
                continue;
            };
            info.columns.retain(|it| it.domain != domain);
            self.domains.next += 1;
            left -= 1;
        }
        left
    }
}
