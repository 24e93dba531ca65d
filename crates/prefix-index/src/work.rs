//! Applying operations to one target.

use std::ops::Range;

use domain::{BlockHash, SequenceHash, StoredBlocks, Tier};

use crate::arena::agreeing;
use crate::chain::{Chain, Under, name_of};
use crate::forest::{Forest, NewBlocks, place};
use crate::naming::CANONICAL;
use crate::rank::Rank;
use crate::run::{MAX_BLOCKS, NO_RUN, Tiers};
use crate::table::Place;
use crate::{Applied, Claims};

/// The runs and the target whose share of them changes.
pub(crate) struct Work<'a> {
    pub(crate) forest: &'a mut Forest,
    pub(crate) rank: &'a mut Rank,
    pub(crate) applied: Applied,
}

impl Work<'_> {
    /// The block that the target calls so.
    pub(crate) fn resolve(&self, group: u32, name: u64) -> Option<Place> {
        if !self.rank.odd.is_empty()
            && let Some(at) = self.rank.odd.place(group, name)
        {
            return Some(at);
        }
        if group != 0 {
            return None;
        }
        let at = self.forest.named(self.rank.domain?, name)?;
        let held = self.tiers_of(at) != Tiers::NONE && self.rank.odd.of(at).is_none();
        held.then_some(at)
    }

    pub(crate) fn tiers_of(&self, at: Place) -> Tiers {
        self.forest.tiers_at(at, self.rank.slot)
    }

    /// Reads ahead where the names of a short operation are and will be: two waits at once.
    pub(crate) fn read_ahead(&self, stored: &StoredBlocks) {
        if let (Some(domain), [only]) = (self.rank.domain, &stored.blocks[..]) {
            let names = stored.parent.iter().chain([&only.engine_hash]);
            self.forest.touch(domain, names.map(name_of));
        }
    }

    /// Stores `chain`, which is not empty, behind `parent`.
    pub(crate) fn store(&mut self, chain: &mut Chain, parent: Option<Place>, under: Under) {
        chain.stretches.clear();
        let mut last = parent;
        let mut done = 0;
        let key = self.forest.namespaces.key(under.namespace);
        let mut sequenced = false;
        while done < chain.blocks.len() {
            let block = chain.blocks[done];
            if let Some(at) = self.next(key, last, block) {
                let count = self.same_blocks(at, &chain.blocks[done..]);
                let names = &chain.names[done..done + count];
                self.choose_domain(Some(at), last, (block, names[0]));
                self.join(at, names, under);
                chain.stretches.push((at, count));
                last = Some(place(at.run, at.offset as usize + count - 1));
                done += count;
                continue;
            }
            self.choose_domain(None, last, (block, chain.names[done]));
            if !sequenced {
                let parent = last.map(|it| self.forest.sequence_at(it));
                chain.sequence(done, parent);
                sequenced = true;
            }
            let from = chain.sequences.len() - (chain.blocks.len() - done);
            let new = NewBlocks {
                blocks: &chain.blocks[done..],
                sequences: &chain.sequences[from..],
            };
            let (at, count) = self.grow(last, new, under);
            chain.stretches.push((at, count));
            let named = (&chain.names[done..done + count], new.sequences);
            self.settle_new(at, named, under);
            last = Some(place(at.run, at.offset as usize + count - 1));
            done += count;
        }
    }

    /// Makes sure that the blocks of `chain` are there behind `parent`, though nobody may hold them.
    pub(crate) fn lay(&mut self, chain: &mut Chain, parent: Option<Place>, namespace: u32) {
        chain.stretches.clear();
        chain.sequence(0, parent.map(|it| self.forest.sequence_at(it)));
        let under = Under {
            namespace,
            group: 0,
            // Not in the one where who holds all of a run holds what it grows by.
            tier: Tier::Disk,
        };
        let key = self.forest.namespaces.key(namespace);
        let mut last = parent;
        let mut done = 0;
        while done < chain.blocks.len() {
            let (at, count) = match self.next(key, last, chain.blocks[done]) {
                Some(at) => (at, self.same_blocks(at, &chain.blocks[done..])),
                None => {
                    let new = NewBlocks {
                        blocks: &chain.blocks[done..],
                        sequences: &chain.sequences[done..],
                    };
                    self.grow(last, new, under)
                }
            };
            chain.stretches.push((at, count));
            last = Some(place(at.run, at.offset as usize + count - 1));
            done += count;
        }
    }

    /// Adds copies of a block that the target holds under that name.
    pub(crate) fn store_more(&mut self, at: Place, name: (u32, u64), copies: (Tier, u32)) {
        if 0 < copies.1 && self.resolve(name.0, name.1) == Some(at) {
            self.store_copies(at, self.tiers_of(at), name, copies);
        }
    }

    /// Where `block` is behind `last`, if it is known.
    fn next(&self, key: u64, last: Option<Place>, block: u64) -> Option<Place> {
        let Some(last) = last else {
            return self.forest.root(key, block).map(|run| place(run, 0));
        };
        let offset = last.offset as usize + 1;
        let view = self.forest.view(last.run);
        if offset < view.len && self.forest.block_at(&view, offset) == block {
            return Some(place(last.run, offset));
        }
        if !view.has_children {
            return None;
        }
        let fork = self.forest.fork(last.run, offset, block);
        fork.map(|run| place(run, 0))
    }

    /// How many of the first of `blocks` are those from `at` on.
    fn same_blocks(&self, at: Place, blocks: &[u64]) -> usize {
        let view = self.forest.view(at.run);
        let column = view.blocks(&self.forest.board.lines);
        let offset = at.offset as usize;
        let most = blocks.len().min(view.len - offset);
        let column = column.expect("the writer's own");
        agreeing(column, offset, &blocks[..most])
    }

    /// Makes room for `new` behind `last`: in its run if that ends there, otherwise in a run of their own, which
    /// the target holds if they are to be in GPU memory. Answers where the first is, and how many found room.
    fn grow(&mut self, last: Option<Place>, new: NewBlocks<'_>, under: Under) -> (Place, usize) {
        self.forest.flush();
        if let Some(last) = last {
            let view = self.forest.view(last.run);
            let ends = last.offset as usize + 1 == view.len;
            if ends && view.len < MAX_BLOCKS {
                // Who holds all of a run holds in GPU memory what it grows by.
                let mut view = view;
                if under.tier != Tier::Gpu || self.forest.others_hold_all(&view, self.rank.slot) {
                    self.forest.end_holds(last.run);
                    view = self.forest.view(last.run);
                }
                let at = place(last.run, view.len);
                return (at, self.forest.append(last.run, view, new));
            }
        }
        let hangs_on = last.map_or((NO_RUN, 0), |it| (it.run, it.offset as usize + 1));
        let holder = (under.tier == Tier::Gpu).then_some(self.rank.slot);
        let run = self.forest.plant(under.namespace, hangs_on, new, holder);
        if holder.is_some() {
            self.rank.runs.push(run);
            self.rank.held_runs += 1;
        }
        (place(run, 0), new.blocks.len().min(MAX_BLOCKS))
    }

    /// Stores the blocks from `at` on, which are there.
    fn join(&mut self, at: Place, names: &[u64], under: Under) {
        let mut done = 0;
        while done < names.len() {
            let at = place(at.run, at.offset as usize + done);
            let mut usual = 0;
            if under.group == 0 && self.rank.odd.is_empty() {
                let slot = self.rank.slot;
                let stretch = self.forest.stretch_at(at.run, slot, at.offset.into());
                if let (range, Tiers::NONE) = stretch {
                    let free = range.end as usize - usize::from(at.offset);
                    let some = &names[done..names.len().min(done + free)];
                    usual = self.name(at, some);
                }
            }
            if usual == 0 {
                let had = self.tiers_of(at);
                self.store_one(at, had, names[done], under);
                done += 1;
                continue;
            }
            let range = at.offset as usize..at.offset as usize + usual;
            self.cover(at.run, range, Tiers::of(under.tier));
            self.applied.stored += usual as u64;
            done += usual;
        }
    }

    /// Of the blocks from `at` on, none of which the target holds, how many of the first have `names` as
    /// their usual names, which are given to them where they have none.
    fn name(&mut self, at: Place, names: &[u64]) -> usize {
        let domain = self.rank.domain.expect("chosen before its first block");
        let mut usual = self.forest.agreeing(domain, at, names);
        if domain == CANONICAL {
            let from = at.offset as usize;
            self.forest.name_canonically(at.run, from..from + usual);
            if !self.forest.unnamed.is_empty() {
                usual = self.forest.agreeing(domain, at, names);
            }
            return usual;
        }
        while usual < names.len() {
            let next = place(at.run, at.offset as usize + usual);
            let named = self.forest.name_as(domain, next, &names[usual..]);
            let next = place(at.run, at.offset as usize + usual + named);
            let more = named + self.forest.agreeing(domain, next, &names[usual + named..]);
            if more == 0 {
                break;
            }
            usual += more;
        }
        usual
    }

    /// Stores blocks that have just come to be, from `at` on, under their names; their sequence hashes are the
    /// first of `sequences`.
    fn settle_new(&mut self, at: Place, (names, sequences): (&[u64], &[u64]), under: Under) {
        let from = at.offset as usize;
        let domain = self.rank.domain.expect("chosen before its first block");
        let mut usual = 0;
        if domain == CANONICAL {
            self.forest
                .name_canonically(at.run, from..from + names.len());
        }
        if under.group == 0 && self.rank.odd.is_empty() {
            usual = if domain != CANONICAL {
                self.forest.name_as(domain, at, names)
            } else if self.forest.unnamed.is_empty() {
                let pairs = names.iter().zip(sequences);
                pairs.take_while(|(name, it)| name == it).count()
            } else {
                self.forest.agreeing(domain, at, names)
            };
        }
        self.cover_new(at.run, from..from + names.len(), under.tier);
        self.applied.stored += usual as u64;
        for (name, offset) in names.iter().zip(from..).skip(usual) {
            self.rank.blocks -= 1;
            self.store_one(place(at.run, offset), Tiers::NONE, *name, under);
        }
    }

    fn cover_new(&mut self, run: u32, range: Range<usize>, tier: Tier) {
        let count = range.len() as u64;
        let slot = self.rank.slot;
        let view = self.forest.view(run);
        if tier == Tier::Gpu && self.forest.holds_all(&view, slot) {
            self.rank.blocks += count;
            self.forest.settle(run);
            return;
        }
        self.cover(run, range, Tiers::of(tier));
    }

    /// Makes the target hold `range` of `run` in exactly `tiers`.
    pub(crate) fn cover(&mut self, run: u32, range: Range<usize>, tiers: Tiers) {
        let covered = self.forest.cover(run, self.rank.slot, range.clone(), tiers);
        match (covered.had_any, covered.has_any) {
            (false, true) => {
                self.rank.runs.push(run);
                self.rank.held_runs += 1;
            }
            (true, false) => self.rank.held_runs -= 1,
            _ => {}
        }
        self.rank.blocks -= u64::from(covered.held);
        if tiers != Tiers::NONE {
            self.rank.blocks += range.len() as u64;
        }
        if 2 * self.rank.held_runs + 16 < self.rank.runs.len() {
            self.forest.flush();
            let runs = std::mem::take(&mut self.rank.runs);
            self.rank.runs = self.forest.held_by(self.rank.slot, runs);
        }
    }

    /// Takes one copy of each of `names` out of `from`, or moves it to `to`. Answers how many, and how many
    /// there were not.
    pub(crate) fn take(
        &mut self,
        group: u32,
        names: &[u64],
        from: Tier,
        to: Option<Tier>,
    ) -> (u64, u64) {
        let (mut taken, mut unknown) = (0, 0);
        let mut done = 0;
        while done < names.len() {
            let Some(at) = self.resolve(group, names[done]) else {
                unknown += 1;
                done += 1;
                continue;
            };
            let count = if group == 0 && self.rank.odd.is_empty() {
                self.take_stretch(at, &names[done..], from, to)
            } else {
                0
            };
            if 0 < count {
                taken += count as u64;
                done += count;
                continue;
            }
            match self.take_one(at, (group, names[done]), from, to) {
                Some(()) => taken += 1,
                None => unknown += 1,
            }
            done += 1;
        }
        (taken, unknown)
    }

    /// Takes as many of the first of `names` as are neighbours of the block at `at`, up or down, and lie in
    /// the same tiers. None of the target's names is odd.
    fn take_stretch(&mut self, at: Place, names: &[u64], from: Tier, to: Option<Tier>) -> usize {
        let offset = u32::from(at.offset);
        let slot = self.rank.slot;
        let (stretch, tiers) = self.forest.stretch_at(at.run, slot, at.offset.into());
        if !tiers.has(from) || to.is_some_and(|it| tiers.has(it)) {
            return 0;
        }
        let domain = self.rank.domain.expect("chosen before its first block");
        let room_down = (offset - stretch.start) as usize + 1;
        let room_up = (stretch.end - offset) as usize;
        let count = self
            .forest
            .agreeing_down(domain, at, &names[..names.len().min(room_down)]);
        let (first, count) = if 1 < count {
            (at.offset as usize + 1 - count, count)
        } else {
            let count = self
                .forest
                .agreeing(domain, at, &names[..names.len().min(room_up)]);
            (at.offset as usize, count)
        };
        let mut left = tiers.without(from);
        if let Some(to) = to {
            left = left.with(to);
        }
        self.cover(at.run, first..first + count, left);
        count
    }

    /// Chooses whose names the target uses, by its first block behind `last`, which may be known.
    fn choose_domain(&mut self, at: Option<Place>, last: Option<Place>, (block, name): (u64, u64)) {
        if self.rank.domain.is_some() {
            return;
        }
        let block = BlockHash::new(block);
        let sequence = match last {
            None => SequenceHash::root(block),
            Some(last) => SequenceHash::new(self.forest.sequence_at(last)).extend(block),
        };
        let domain = if sequence.get() == name {
            CANONICAL
        } else {
            self.foreign_domain(at, name)
        };
        self.forest.domains.join(domain, self.rank.slot);
        self.rank.domain = Some(domain);
    }

    fn foreign_domain(&mut self, at: Option<Place>, name: u64) -> u32 {
        let agreeing = at.and_then(|at| self.forest.foreign_domain_of(at, name));
        let other = self
            .forest
            .domains
            .first_foreign()
            .filter(|it| at.is_none_or(|at| self.forest.usual_name(*it, at).is_none()));
        agreeing
            .or(other)
            .unwrap_or_else(|| self.forest.domains.add())
    }

    /// Whether `blocks` more find room.
    pub(crate) fn has_room(&self, blocks: usize) -> bool {
        let domain = self.rank.domain.map(|it| self.forest.domains.at(it));
        self.forest.has_room(blocks) && domain.is_none_or(|it| it.has_room(blocks))
    }

    /// Says that the claims are not complete any more.
    pub(crate) fn lose_track(&mut self) {
        self.rank.claims = Claims::Partial { announced: 0 };
    }

    /// Counts blocks that came into GPU memory.
    pub(crate) fn announce(&mut self, tier: Tier, blocks: usize) {
        if let (Claims::Partial { announced }, Tier::Gpu) = (&mut self.rank.claims, tier) {
            *announced += blocks as u64;
        }
    }
}
