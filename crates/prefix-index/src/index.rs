//! The index itself: applying events, fencing incarnations, letting go of targets.

use std::collections::hash_map::IntoValues;
use std::collections::{BTreeMap, VecDeque};
use std::ops::AddAssign;
use std::sync::{Arc, PoisonError, RwLock};

use domain::{DpRank, EngineHash, Epoch, KvOp, StoredBlocks, Target, Tier, WorkerId};

use crate::Reader;
use crate::holders::{Slot, SlotSet};
use crate::namespaces::{Block, Namespaces};
use crate::rank::{Name, Named, Rank, Stored, extend};

/// How many blocks of targets let go are swept with each operation, and with each block of it. More than one
/// a block, so that the rest cannot grow for ever.
const SWEPT_PER_OP: usize = 8;
const SWEPT_PER_BLOCK: usize = 2;

/// Who holds which prefix, in every namespace.
///
/// A block stays with a target until the last copy of it goes, counted per tier, group and engine hash.
/// An engine hash that comes to stand for other content, or for another namespace, gives up its old
/// meaning with all its copies: the engine has only one block under that name.
#[derive(Debug)]
pub struct PrefixIndex {
    pub(crate) namespaces: Namespaces,
    pub(crate) ranks: BTreeMap<Target, Rank>,
    /// The slots of `ranks`.
    pub(crate) live: SlotSet,
    /// Slots given out so far.
    pub(crate) slots: u32,
    free: Vec<Slot>,
    retired: VecDeque<Retired>,
    fences: BTreeMap<WorkerId, Epoch>,
    /// What readers see.
    shadow: Option<Arc<RwLock<PrefixIndex>>>,
}

/// A slot that no target has any more, whose bits are still to be swept out of the blocks.
#[derive(Debug)]
struct Retired {
    slot: Slot,
    names: IntoValues<Name, Named>,
}

/// How complete what a target claims is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claims {
    /// It holds what it claims and nothing else.
    Complete,
    /// It holds what it claims and may hold more: after a Reset, or a block that could not be placed.
    Partial {
        /// Blocks it has filled in GPU memory since. When these are as many as it has room for, nothing
        /// older can be left, and [`PrefixIndex::complete`] may be called.
        announced: u64,
    },
}

/// What came of one operation, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Copies that are the target's first of their block in their tier.
    pub stored: u64,
    /// Further copies.
    pub duplicates: u64,
    /// Stored blocks left out, because the target has no such parent in that namespace. They make the
    /// target's claims partial.
    pub orphans: u64,
    /// Engine hashes that gave up an older meaning.
    pub renamed: u64,
    /// Copies removed.
    pub removed: u64,
    /// Copies moved between tiers.
    pub retiered: u64,
    /// Removals and moves of copies that the target does not have.
    pub unknown: u64,
}

/// An operation of an incarnation that has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} is fenced below epoch {epoch}")]
pub struct Fenced {
    /// The worker.
    pub worker: WorkerId,
    /// The lowest epoch that is heard.
    pub epoch: Epoch,
}

/// One target at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSummary {
    /// The target.
    pub target: Target,
    /// Distinct blocks in any tier.
    pub blocks: u64,
    /// The wrapping sum of their [`domain::SequenceHash::digest_term`].
    pub digest: u64,
    /// How complete it is.
    pub claims: Claims,
}

/// How much there is in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Targets known.
    pub targets: usize,
    /// Namespaces in which some target holds a block.
    pub namespaces: usize,
    /// Distinct blocks that some target holds, or whose sweep is outstanding.
    pub blocks: usize,
    /// Engine hashes of targets let go that are still to be swept.
    pub unswept: usize,
}

impl PrefixIndex {
    /// An empty index. Of the blocks that nobody holds any more, it remembers `departed_bound`.
    pub fn new(departed_bound: usize) -> Self {
        Self {
            namespaces: Namespaces::new(departed_bound),
            ranks: BTreeMap::new(),
            live: SlotSet::default(),
            slots: 0,
            free: Vec::new(),
            retired: VecDeque::new(),
            fences: BTreeMap::new(),
            shadow: None,
        }
        .with_shadow(departed_bound)
    }

    fn with_shadow(mut self, departed_bound: usize) -> Self {
        let shadow = Self {
            namespaces: Namespaces::new(departed_bound),
            ranks: BTreeMap::new(),
            live: SlotSet::default(),
            slots: 0,
            free: Vec::new(),
            retired: VecDeque::new(),
            fences: BTreeMap::new(),
            shadow: None,
        };
        self.shadow = Some(Arc::new(RwLock::new(shadow)));
        self
    }

    pub(crate) fn in_shadow(&self, act: impl FnOnce(&mut Self)) {
        if let Some(shadow) = &self.shadow {
            act(&mut shadow.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// One more reader.
    pub fn reader(&self) -> Reader {
        Reader::new(self.shadow.clone().expect("the index itself has one"))
    }

    /// Applies one operation of `target`, which becomes known by it. Only an op of a fenced incarnation is
    /// refused; an unknown block is counted and stops nothing.
    pub fn apply(&mut self, target: &Target, op: &KvOp) -> Result<Applied, Fenced> {
        self.admit(target)?;
        self.in_shadow(|it| {
            it.apply(target, op).ok();
        });
        let applied = match op {
            KvOp::Stored(stored) => self.store(target, stored),
            KvOp::Retiered {
                group,
                engine_hashes,
                from,
                to,
            } => self.retier(target, *group, engine_hashes, (*from, *to)),
            KvOp::Removed {
                group,
                engine_hashes,
                tier,
            } => self.remove(target, *group, engine_hashes, *tier),
            KvOp::Cleared => self.clear(target, Claims::Complete),
            KvOp::Reset { .. } => self.clear(target, Claims::Partial { announced: 0 }),
        };
        let blocks = usize::try_from(applied.stored + applied.duplicates).unwrap_or(usize::MAX);
        self.sweep(blocks.saturating_mul(SWEPT_PER_BLOCK) + SWEPT_PER_OP);
        Ok(applied)
    }

    /// Ends the incarnations of `worker` below `epoch`: their targets vanish at once, and what comes of
    /// them later is refused. Answers the targets that vanished. A fence never moves down.
    pub fn fence(&mut self, worker: &WorkerId, epoch: Epoch) -> Vec<Target> {
        self.in_shadow(|it| {
            it.fence(worker, epoch);
        });
        let fence = self.fences.entry(worker.clone()).or_insert(epoch);
        *fence = (*fence).max(epoch);
        let first = Target {
            worker: worker.clone(),
            epoch: Epoch::new(0),
            dp_rank: DpRank::new(0),
        };
        let end = Target {
            epoch: *fence,
            ..first.clone()
        };
        let fenced: Vec<Target> = self
            .ranks
            .range(first..end)
            .map(|it| it.0.clone())
            .collect();
        fenced.iter().for_each(|target| self.forget(target));
        fenced
    }

    /// The lowest epoch of `worker` that is heard; none if it was never fenced.
    pub fn fence_of(&self, worker: &WorkerId) -> Option<Epoch> {
        self.fences.get(worker).copied()
    }

    /// The fences, by worker.
    pub fn fences(&self) -> impl Iterator<Item = (&WorkerId, Epoch)> {
        self.fences.iter().map(|(worker, epoch)| (worker, *epoch))
    }

    /// Lets go of `target` as if it had never spoken. Its blocks leave the answers at once.
    pub fn forget(&mut self, target: &Target) {
        self.in_shadow(|it| it.forget(target));
        if let Some(rank) = self.ranks.remove(target) {
            self.live.remove(rank.slot);
            self.retired.push_back(Retired {
                slot: rank.slot,
                names: rank.into_names(),
            });
        }
    }

    /// Says that `target` is known to hold nothing but what it claims.
    pub fn complete(&mut self, target: &Target) {
        if let Some(rank) = self.ranks.get_mut(target) {
            rank.claims = Claims::Complete;
        }
    }

    /// One target at a glance.
    pub fn rank(&self, target: &Target) -> Option<RankSummary> {
        let rank = self.ranks.get(target)?;
        Some(summary(target, rank))
    }

    /// How complete what `target` claims is.
    pub fn claims(&self, target: &Target) -> Option<Claims> {
        self.ranks.get(target).map(|rank| rank.claims)
    }

    /// Every target, in ascending order.
    pub fn ranks(&self) -> impl Iterator<Item = RankSummary> {
        self.ranks
            .iter()
            .map(|(target, rank)| summary(target, rank))
    }

    /// How much there is in all. Linear in namespaces and targets.
    pub fn size(&self) -> Size {
        let (blocks, namespaces) = self.namespaces.len();
        Size {
            targets: self.ranks.len(),
            namespaces,
            blocks,
            unswept: self.retired.iter().map(|it| it.names.len()).sum(),
        }
    }

    /// Blocks that nobody holds any more and that were forgotten because the bound was reached.
    pub fn forgotten(&self) -> u64 {
        self.namespaces.departed().forgotten()
    }

    /// Sweeps up to `budget` blocks of targets let go. Operations do it in passing; call it when idle.
    /// Answers whether anything is left.
    pub fn sweep(&mut self, budget: usize) -> bool {
        for _ in 0..budget {
            let Some(retired) = self.retired.front_mut() else {
                return false;
            };
            let slot = retired.slot;
            match retired.names.next() {
                Some(named) => {
                    self.namespaces
                        .take_from(named.block, slot, |it| it.remove_all(slot));
                }
                None => {
                    self.free.push(slot);
                    self.retired.pop_front();
                }
            }
        }
        !self.retired.is_empty()
    }

    pub(crate) fn admit(&mut self, target: &Target) -> Result<(), Fenced> {
        if let Some(epoch) = self.fences.get(&target.worker)
            && target.epoch < *epoch
        {
            return Err(Fenced {
                worker: target.worker.clone(),
                epoch: *epoch,
            });
        }
        if !self.ranks.contains_key(target) {
            let slot = self.new_slot();
            self.ranks.insert(target.clone(), Rank::new(slot));
        }
        Ok(())
    }

    /// `target`'s state, which [`Self::admit`] has made sure of, and the blocks.
    pub(crate) fn parts(&mut self, target: &Target) -> (&mut Rank, &mut Namespaces) {
        let rank = self
            .ranks
            .get_mut(target)
            .expect("an admitted target is known");
        (rank, &mut self.namespaces)
    }

    fn new_slot(&mut self) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = Slot(self.slots);
            self.slots += 1;
            slot
        });
        self.live.insert(slot);
        slot
    }

    fn store(&mut self, target: &Target, stored: &StoredBlocks) -> Applied {
        let (rank, all) = self.parts(target);
        let group = stored.group;
        let namespace = all.intern(&stored.namespace);
        let name = |engine_hash: &EngineHash| Name {
            group,
            engine_hash: engine_hash.clone(),
        };
        let mut parent = None;
        let mut applied = Applied::default();
        if let Some(engine_hash) = &stored.parent {
            let block = rank.block(&name(engine_hash));
            parent = block
                .filter(|it| it.namespace == namespace)
                .map(|it| it.sequence);
            if parent.is_none() {
                all.release(namespace);
                rank.claims = Claims::Partial { announced: 0 };
                applied.orphans = stored.blocks.len() as u64;
                return applied;
            }
        }
        for stored_block in &stored.blocks {
            let sequence = extend(parent, stored_block.block_hash);
            let block = Block {
                namespace,
                sequence,
            };
            let name = name(&stored_block.engine_hash);
            let Stored { first, renamed } = rank.store(all, name, block, (stored.tier, 1));
            applied.stored += u64::from(first);
            applied.duplicates += u64::from(!first);
            applied.renamed += u64::from(renamed);
            parent = Some(sequence);
        }
        all.release(namespace);
        if let (Claims::Partial { announced }, Tier::Gpu) = (&mut rank.claims, stored.tier) {
            *announced += stored.blocks.len() as u64;
        }
        applied
    }

    fn retier(
        &mut self,
        target: &Target,
        group: u32,
        engine_hashes: &[EngineHash],
        (from, to): (Tier, Tier),
    ) -> Applied {
        let (rank, all) = self.parts(target);
        let mut applied = Applied::default();
        for engine_hash in engine_hashes {
            let engine_hash = engine_hash.clone();
            match rank.retier(all, Name { group, engine_hash }, from, to) {
                Some(()) => applied.retiered += 1,
                None => applied.unknown += 1,
            }
        }
        applied
    }

    fn remove(
        &mut self,
        target: &Target,
        group: u32,
        engine_hashes: &[EngineHash],
        tier: Tier,
    ) -> Applied {
        let (rank, all) = self.parts(target);
        let mut applied = Applied::default();
        for engine_hash in engine_hashes {
            let engine_hash = engine_hash.clone();
            match rank.remove(all, Name { group, engine_hash }, tier) {
                Some(()) => applied.removed += 1,
                None => applied.unknown += 1,
            }
        }
        applied
    }

    /// Empties `target` at once: it goes on under a new slot, and the old one is swept later.
    fn clear(&mut self, target: &Target, claims: Claims) -> Applied {
        let new = self.new_slot();
        let (rank, _) = self.parts(target);
        rank.claims = claims;
        let slot = rank.slot;
        let names = rank.start_over(new);
        self.live.remove(slot);
        self.retired.push_back(Retired { slot, names });
        Applied::default()
    }
}

fn summary(target: &Target, rank: &Rank) -> RankSummary {
    RankSummary {
        target: target.clone(),
        blocks: rank.blocks,
        digest: rank.digest,
        claims: rank.claims,
    }
}

impl AddAssign for Applied {
    fn add_assign(&mut self, other: Self) {
        self.stored += other.stored;
        self.duplicates += other.duplicates;
        self.orphans += other.orphans;
        self.renamed += other.renamed;
        self.removed += other.removed;
        self.retiered += other.retiered;
        self.unknown += other.unknown;
    }
}
