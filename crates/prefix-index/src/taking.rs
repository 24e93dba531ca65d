//! Taking a target's snapshot, and restoring it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::{BlockHash, EngineHash, Target, Tier};

use crate::arena::word;
use crate::chain::{Chain, Under, name_of};
use crate::forest::{Forest, place};
use crate::rank::{ALL_TIERS, OddName, Rank};
use crate::run::NO_RUN;
use crate::table::Place;
use crate::work::Work;
use crate::{Applied, Copies, HeldBlock, PrefixIndex, RankSnapshot, RestoreError};

impl PrefixIndex {
    /// What `target` holds.
    pub fn snapshot(&self, target: &Target) -> Option<RankSnapshot> {
        let rank = self.ranks.get(target)?;
        let mut taking = Taking {
            forest: &self.forest,
            snapshot: RankSnapshot {
                claims: rank.claims,
                namespaces: Vec::new(),
                blocks: Vec::with_capacity(rank.blocks as usize),
            },
            namespaces: HashMap::new(),
            places: HashMap::new(),
        };
        let runs = self.forest.held_by(rank.slot, rank.runs.clone());
        for run in self.forest.depth_first(runs) {
            let view = self.forest.view(run);
            for (range, tiers) in self.forest.stretches(&view, rank.slot) {
                for offset in range {
                    let at = place(run, offset);
                    match rank.odd.of(at) {
                        Some(names) => taking.hold(at, names),
                        None => taking.hold(at, &self.forest.usual(rank.domain, at, tiers)),
                    }
                }
            }
        }
        Some(taking.snapshot)
    }

    /// Adds what `snapshot` holds to `target`, which becomes known by it: one snapshot may be restored in
    /// several pieces. After an error a part of the blocks may have been added.
    pub fn restore(
        &mut self,
        target: &Target,
        snapshot: &RankSnapshot,
    ) -> Result<(), RestoreError> {
        self.forest.board.let_readers_go_first();
        self.admit(target).map_err(|source| RestoreError::Fenced {
            target: target.clone(),
            source,
        })?;
        let work = self.work(target);
        if !work.rank.crowded_out {
            work.rank.claims = snapshot.claims;
        }
        if !work.has_room(snapshot.blocks.len()) {
            let target = target.clone();
            return Err(RestoreError::Full { target });
        }
        let mut restoring = Restoring {
            work,
            target,
            snapshot,
            places: Vec::with_capacity(snapshot.blocks.len()),
            chain: Chain::default(),
        };
        let restored = restoring.all();
        restoring.finish();
        restored
    }
}

impl PrefixIndex {
    /// Gives `target` a domain of its own, in which all its names fit. It goes on under a new slot, with the same
    /// blocks, from one moment to the next.
    pub(crate) fn move_to_own_names(&mut self, target: &Target) {
        let Some(snapshot) = self.snapshot(target) else {
            return;
        };
        let slot = self.new_slot();
        let domain = self.forest.domains.add();
        self.forest.domains.join(domain, slot);
        let mut fresh = Rank::new(slot);
        fresh.domain = Some(domain);
        fresh.conflicts = u32::MAX;
        let work = Work {
            forest: &mut self.forest,
            rank: &mut fresh,
            applied: Applied::default(),
        };
        let mut restoring = Restoring {
            work,
            target,
            snapshot: &snapshot,
            places: Vec::with_capacity(snapshot.blocks.len()),
            chain: Chain::default(),
        };
        let restored = restoring.all();
        restoring.finish();
        let rank = self.ranks.get_mut(target);
        let rank = rank.expect("what has a snapshot is known");
        rank.conflicts = u32::MAX;
        if restored.is_err() || fresh.blocks != rank.blocks {
            // A run had no room for both.
            self.retire(vec![fresh], None);
            return;
        }
        fresh.claims = rank.claims;
        fresh.crowded_out = rank.crowded_out;
        fresh.namespace = rank.namespace;
        let old = std::mem::replace(rank, fresh);
        self.retire(vec![old], Some((slot, target)));
    }
}

impl Forest {
    /// `runs` so that what a run hangs on comes before it, and what hangs on the same run stands together.
    fn depth_first(&self, runs: Vec<u32>) -> Vec<u32> {
        let mut hanging: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let wanted: BTreeSet<u32> = runs.iter().copied().collect();
        for run in runs {
            let mut run = run;
            while run != NO_RUN {
                let parent = self.view(run).parent;
                if !hanging.entry(parent).or_default().insert(run) {
                    break;
                }
                run = parent;
            }
        }
        let mut ordered = Vec::with_capacity(wanted.len());
        let mut next = vec![NO_RUN];
        while let Some(run) = next.pop() {
            if wanted.contains(&run) {
                ordered.push(run);
            }
            next.extend(hanging.get(&run).into_iter().flatten());
        }
        ordered
    }
}

/// A snapshot while it is taken.
struct Taking<'a> {
    forest: &'a Forest,
    snapshot: RankSnapshot,
    /// Places of namespaces by number.
    namespaces: HashMap<u32, u32>,
    /// For each run, the places of its blocks from the first on.
    places: HashMap<u32, Vec<u32>>,
}

impl Taking<'_> {
    /// Adds a block and those on the way to it.
    fn hold(&mut self, at: Place, names: &[OddName]) {
        let mut way = Vec::new();
        let mut next = self.parent(at);
        while let Some(before) = next.filter(|it| self.place(*it).is_none()) {
            way.push(before);
            next = self.parent(before);
        }
        for before in way.into_iter().rev() {
            self.push(before, None);
        }
        for name in names {
            self.push(at, Some(*name));
        }
    }

    fn parent(&self, at: Place) -> Option<Place> {
        if 0 < at.offset {
            return Some(place(at.run, at.offset as usize - 1));
        }
        let view = self.forest.view(at.run);
        (view.parent != NO_RUN).then(|| place(view.parent, view.hangs_at as usize - 1))
    }

    fn place(&self, at: Place) -> Option<u32> {
        self.places.get(&at.run)?.get(at.offset as usize).copied()
    }

    fn push(&mut self, at: Place, name: Option<OddName>) {
        let view = self.forest.view(at.run);
        let number = self.forest.info[at.run as usize].namespace;
        let namespaces = &mut self.snapshot.namespaces;
        let namespace = *self.namespaces.entry(number).or_insert_with(|| {
            namespaces.push(self.forest.namespaces.name(number).clone());
            namespaces.len() as u32 - 1
        });
        let blocks = view.blocks(&self.forest.board.lines);
        let blocks = blocks.expect("the writer's own");
        let [gpu, host, disk] = name.map_or([0; 3], |it| it.copies);
        let held = HeldBlock {
            namespace,
            parent: self.parent(at).and_then(|it| self.place(it)),
            block_hash: BlockHash::new(word(blocks, at.offset as usize)),
            group: name.map_or(0, |it| it.group),
            engine_hash: EngineHash::Int(name.map_or(0, |it| it.name)),
            copies: Copies { gpu, host, disk },
        };
        let index = self.snapshot.blocks.len() as u32;
        let places = self.places.entry(at.run).or_default();
        if places.len() == at.offset as usize {
            places.push(index);
        }
        self.snapshot.blocks.push(held);
    }
}

/// A snapshot while it is restored.
struct Restoring<'a> {
    work: Work<'a>,
    target: &'a Target,
    snapshot: &'a RankSnapshot,
    /// Where the blocks are.
    places: Vec<Place>,
    chain: Chain,
}

impl Restoring<'_> {
    fn all(&mut self) -> Result<(), RestoreError> {
        let blocks = &self.snapshot.blocks;
        while let Some(first) = blocks.get(self.places.len()) {
            let from = self.places.len();
            let number = self.namespace(first)?;
            let parent = self.parent(from, first)?;
            let mut to = from + 1;
            while let Some(next) = blocks.get(to)
                && next.parent == Some(to as u32 - 1)
                && next.namespace == first.namespace
                && (next.group, next.copies) == (first.group, first.copies)
            {
                to += 1;
            }
            let stretch = &blocks[from..to];
            self.chain.blocks.clear();
            self.chain.names.clear();
            self.chain
                .blocks
                .extend(stretch.iter().map(|it| it.block_hash.get()));
            self.chain
                .names
                .extend(stretch.iter().map(|it| name_of(&it.engine_hash)));
            self.stretch(number, parent, first);
        }
        Ok(())
    }

    /// Restores a chain of blocks that are like `first`.
    fn stretch(&mut self, namespace: u32, parent: Option<Place>, first: &HeldBlock) {
        let Copies { gpu, host, disk } = first.copies;
        let mut copies = ALL_TIERS
            .into_iter()
            .zip([gpu, host, disk])
            .filter(|it| it.1 != 0);
        let first_tier = copies.next();
        let under = Under {
            namespace,
            group: first.group,
            tier: first_tier.map_or(Tier::Gpu, |it| it.0),
        };
        match first_tier {
            Some(_) => self.work.store(&mut self.chain, parent, under),
            None => self.work.lay(&mut self.chain, parent, namespace),
        }
        let from = self.places.len();
        for (at, count) in &self.chain.stretches {
            let offset = at.offset as usize;
            self.places
                .extend((offset..offset + count).map(|it| place(at.run, it)));
        }
        let more = first_tier.map(|(tier, count)| (tier, count - 1));
        for (tier, count) in more.into_iter().chain(copies) {
            for (place, name) in self.places[from..].iter().zip(&self.chain.names) {
                self.work
                    .store_more(*place, (first.group, *name), (tier, count));
            }
        }
    }

    fn namespace(&mut self, block: &HeldBlock) -> Result<u32, RestoreError> {
        let name = self.snapshot.namespaces.get(block.namespace as usize);
        let name = name.ok_or_else(|| RestoreError::Namespace {
            target: self.target.clone(),
            namespace: block.namespace,
        })?;
        let forest = &mut *self.work.forest;
        let secrets = &forest.board.secrets;
        Ok(forest
            .namespaces
            .number(name, u32::MAX, || secrets.key(name)))
    }

    /// Where the parent of the block at `index` is. A name that a later block takes over may have let it go.
    fn parent(&self, index: usize, block: &HeldBlock) -> Result<Option<Place>, RestoreError> {
        let Some(parent) = block.parent else {
            return Ok(None);
        };
        let place = self.places.get(parent as usize).copied();
        let there = place.filter(|at| {
            let before = &self.snapshot.blocks[parent as usize];
            before.namespace == block.namespace
                && self.work.forest.has_block(*at, before.block_hash.get())
        });
        let why = || RestoreError::Parent {
            target: self.target.clone(),
            block: index as u32,
            parent,
        };
        there.map(Some).ok_or_else(why)
    }

    /// Sees to what was only on the way and led nowhere.
    fn finish(mut self) {
        self.work.relieve();
        let forest = self.work.forest;
        let mut runs: Vec<u32> = self.places.iter().map(|it| it.run).collect();
        runs.dedup();
        runs.into_iter().for_each(|run| forest.settle(run));
        forest.reclaim();
        for name in &self.snapshot.namespaces {
            let secrets = &forest.board.secrets;
            let number = forest
                .namespaces
                .number(name, u32::MAX, || secrets.key(name));
            forest.namespaces.release(number);
        }
    }
}
