//! The index itself: applying events, fencing incarnations, letting go of targets.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::AddAssign;
use std::sync::PoisonError;

use domain::{Epoch, KvOp, Namespace, StoredBlocks, Target, WorkerId};

use crate::chain::{Chain, Under, name_of};
use crate::forest::Forest;
use crate::holders::Hold;
use crate::rank::Rank;
use crate::sync::{Ordering, begin_write, end_write};
use crate::work::Work;
use crate::{Overlap, Reader, Request};
use domain::Folding;

/// How many blocks of targets let go are swept with each operation, and with each block of it. More than one
/// a block, so that the rest cannot grow for ever.
const SWEPT_PER_OP: usize = 8;
const SWEPT_PER_BLOCK: usize = 2;

/// Who holds which prefix, in every namespace.
///
/// A block stays with a target until the last copy of it goes, counted per tier, group and engine hash.
/// An engine hash that comes to stand for other content, or for another namespace, gives up its old
/// meaning with all its copies: the engine has only one block under that name.
///
/// This is the writer's side. [`Reader`]s look up meanwhile, and see every change of a run as a whole.
#[derive(Debug)]
pub struct PrefixIndex {
    pub(crate) forest: Forest,
    pub(crate) ranks: HashMap<Target, Rank, Folding>,
    slots: Slots,
    retired: VecDeque<Retired>,
    fences: BTreeMap<WorkerId, Epoch>,
    chain: Chain,
    reader: Reader,
}

/// The slots of targets.
#[derive(Debug, Default)]
struct Slots {
    /// Given out so far.
    count: u32,
    free: Vec<u32>,
}

/// A slot that no target has any more, and that still stands in some runs.
#[derive(Debug)]
struct Retired {
    slot: u32,
    domain: Option<u32>,
    runs: Vec<u32>,
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
    /// Blocks left out, because the target has no such parent in that namespace, because the index has no
    /// more room, or because more stretches of 4096 blocks are held than are kept of so many: then the target
    /// claims of these only those in GPU memory from the first on, whatever the operation. They make the
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
    /// Namespaces that have blocks.
    pub namespaces: usize,
    /// Distinct blocks that are held, or lie before a held one of their chain, or wait to be swept.
    pub blocks: usize,
    /// Runs of blocks that are still to be swept: of targets let go, or for names that nobody uses any more.
    pub unswept: usize,
}

impl PrefixIndex {
    /// An empty index. Of the blocks that nobody holds any more, it remembers about `departed_bound`, and up to a
    /// quarter as many more where they were (see [`Self::reclaim`]).
    pub fn new(departed_bound: usize) -> Self {
        let forest = Forest::new(departed_bound);
        Self {
            reader: Reader::new(forest.board.clone()),
            ranks: HashMap::with_hasher(Folding::default()),
            slots: Slots::default(),
            retired: VecDeque::new(),
            fences: BTreeMap::new(),
            chain: Chain::default(),
            forest,
        }
    }

    /// One more reader.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Applies one operation of `target`, which becomes known by it. Only an op of a fenced incarnation is
    /// refused; an unknown block is counted and stops nothing.
    pub fn apply(&mut self, target: &Target, op: &KvOp) -> Result<Applied, Fenced> {
        self.forest.board.let_readers_go_first();
        let applied = match op {
            KvOp::Stored(stored) => {
                self.change(target, |work, chain| store(work, stored, chain))?
            }
            KvOp::Retiered {
                group,
                engine_hashes,
                from,
                to,
            } => self.change(target, |work, chain| {
                chain.read_names(engine_hashes);
                let (retiered, unknown) = work.take(*group, &chain.names, *from, Some(*to));
                work.applied.retiered += retiered;
                work.applied.unknown += unknown;
            })?,
            KvOp::Removed {
                group,
                engine_hashes,
                tier,
            } => self.change(target, |work, chain| {
                chain.read_names(engine_hashes);
                let (removed, unknown) = work.take(*group, &chain.names, *tier, None);
                work.applied.removed += removed;
                work.applied.unknown += unknown;
            })?,
            KvOp::Cleared => self.clear(target, Claims::Complete)?,
            KvOp::Reset { .. } => self.clear(target, Claims::Partial { announced: 0 })?,
        };
        self.forest.reclaim();
        if self.is_unswept() {
            let blocks = usize::try_from(applied.stored + applied.duplicates).unwrap_or(usize::MAX);
            self.sweep(blocks.saturating_mul(SWEPT_PER_BLOCK) + SWEPT_PER_OP);
        }
        Ok(applied)
    }

    /// Changes what `target` holds.
    fn change(
        &mut self,
        target: &Target,
        change: impl FnOnce(&mut Work<'_>, &mut Chain),
    ) -> Result<Applied, Fenced> {
        let rank = if let Some(rank) = self.ranks.get_mut(target) {
            // A fence takes the targets below it away.
            rank
        } else {
            self.admit(target)?;
            let rank = self.ranks.get_mut(target);
            rank.expect("an admitted target is known")
        };
        let mut work = Work {
            forest: &mut self.forest,
            rank,
            applied: Applied::default(),
        };
        change(&mut work, &mut self.chain);
        work.applied.orphans += work.relieve();
        let applied = work.applied;
        if work.rank.is_misplaced() {
            self.move_to_own_names(target);
        }
        Ok(applied)
    }

    /// Ends the incarnations of `worker` below `epoch`: their targets vanish at once, and what comes of
    /// them later is refused. Answers the targets that vanished. A fence never moves down.
    pub fn fence(&mut self, worker: &WorkerId, epoch: Epoch) -> Vec<Target> {
        let fence = self.fences.entry(worker.clone()).or_insert(epoch);
        *fence = (*fence).max(epoch);
        let fence = *fence;
        let known = self.ranks.keys();
        let ended = known.filter(|it| it.worker == *worker && it.epoch < fence);
        let mut ended: Vec<Target> = ended.cloned().collect();
        ended.sort_unstable();
        let ranks = ended.iter().filter_map(|it| self.ranks.remove(it));
        let ranks: Vec<Rank> = ranks.collect();
        self.retire(ranks, None);
        ended
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
        if let Some(rank) = self.ranks.remove(target) {
            self.retire(vec![rank], None);
        }
    }

    /// Says that `target` is known to hold nothing but what it claims.
    pub fn complete(&mut self, target: &Target) {
        if let Some(rank) = self.ranks.get_mut(target) {
            rank.claims = Claims::Complete;
            rank.crowded_out = false;
        }
    }

    /// How complete what `target` claims is.
    pub fn claims(&self, target: &Target) -> Option<Claims> {
        self.ranks.get(target).map(|rank| rank.claims)
    }

    /// Distinct blocks of `target` in any tier.
    pub fn blocks(&self, target: &Target) -> Option<u64> {
        self.ranks.get(target).map(|rank| rank.blocks)
    }

    /// Every target, in ascending order.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let mut targets: Vec<&Target> = self.ranks.keys().collect();
        targets.sort_unstable();
        targets.into_iter()
    }

    /// One target at a glance. Its digest is computed anew: some nanoseconds a block.
    pub fn rank(&self, target: &Target) -> Option<RankSummary> {
        let rank = self.ranks.get(target)?;
        Some(RankSummary {
            target: target.clone(),
            blocks: rank.blocks,
            digest: self.digest(rank),
            claims: rank.claims,
        })
    }

    /// Every target, in ascending order, as [`Self::rank`].
    pub fn ranks(&self) -> impl Iterator<Item = RankSummary> {
        self.targets().filter_map(|target| self.rank(target))
    }

    /// How much there is in all.
    pub fn size(&self) -> Size {
        let unswept: usize = self.retired.iter().map(|it| it.runs.len()).sum();
        Size {
            targets: self.ranks.len(),
            namespaces: self.forest.namespaces.live(),
            blocks: self.forest.ghosts.live(),
            unswept: unswept + self.forest.unswept(),
        }
    }

    /// Blocks that nobody holds any more and that were forgotten because the bound was reached.
    pub fn forgotten(&self) -> u64 {
        self.forest.board.departed.forgotten()
    }

    /// Who holds how much of `request`, with the targets' names.
    pub fn overlap<'a>(&self, namespace: &Namespace, request: impl Into<Request<'a>>) -> Overlap {
        self.reader.overlap(namespace, request)
    }

    /// Sweeps about `budget` blocks of targets let go. Operations do it in passing; call it when idle.
    /// Answers whether anything is left.
    pub fn sweep(&mut self, budget: usize) -> bool {
        let mut left = budget;
        while 0 < left {
            let Some(retired) = self.retired.front_mut() else {
                self.forest.sweep_columns(left);
                break;
            };
            let (slot, domain) = (retired.slot, retired.domain);
            match retired.runs.pop() {
                Some(run) => {
                    let swept = self.sweep_run(run, slot);
                    left = left.saturating_sub(1 + swept);
                }
                None => {
                    if let Some(domain) = domain {
                        let forest = &mut self.forest;
                        forest.domains.leave(domain, slot, &mut forest.lines);
                    }
                    self.slots.free.push(slot);
                    self.retired.pop_front();
                }
            }
        }
        self.forest.reclaim();
        self.is_unswept()
    }

    fn is_unswept(&self) -> bool {
        !self.retired.is_empty() || self.forest.unswept() != 0
    }

    /// Takes a slot out of a run. Answers how many blocks have become ghosts.
    fn sweep_run(&mut self, run: u32, slot: u32) -> usize {
        let forest = &mut self.forest;
        let live = forest.ghosts.live();
        if forest.hold_of(&forest.view(run), slot) != Hold::Nothing {
            forest.set_hold(run, slot, Hold::Nothing);
            forest.settle(run);
        }
        live - forest.ghosts.live()
    }

    /// Lets go of all but at most `ghosts` of the blocks that nobody holds and that still lie where they were, so
    /// that what comes back is found again. There they take about thirty bytes each; afterwards they are
    /// remembered in four. There are never more than a quarter of what is remembered at all.
    pub fn reclaim(&mut self, ghosts: usize) {
        self.forest.board.let_readers_go_first();
        self.forest.reclaim_beyond(ghosts);
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
            self.publish(&[], Some((slot, target)));
        }
        Ok(())
    }

    /// `target`, which [`Self::admit`] has made sure of, at work.
    pub(crate) fn work(&mut self, target: &Target) -> Work<'_> {
        let rank = self.ranks.get_mut(target);
        Work {
            rank: rank.expect("an admitted target is known"),
            forest: &mut self.forest,
            applied: Applied::default(),
        }
    }

    /// Empties `target` at once: it goes on under a new slot, and the old one is swept later.
    fn clear(&mut self, target: &Target, claims: Claims) -> Result<Applied, Fenced> {
        self.admit(target)?;
        let rank = self.ranks.get_mut(target);
        let rank = rank.expect("an admitted target is known");
        rank.claims = claims;
        if rank.blocks != 0 {
            let slot = self.new_slot();
            let rank = self.ranks.get_mut(target);
            let rank = rank.expect("an admitted target is known");
            let mut fresh = Rank::new(slot);
            fresh.claims = claims;
            fresh.namespace = rank.namespace;
            fresh.domain = rank.domain;
            let old = std::mem::replace(rank, fresh);
            if let Some(domain) = old.domain {
                self.forest.domains.join(domain, slot);
            }
            self.retire(vec![old], Some((slot, target)));
        }
        Ok(Applied::default())
    }

    pub(crate) fn new_slot(&mut self) -> u32 {
        self.slots.free.pop().unwrap_or_else(|| {
            self.slots.count += 1;
            self.slots.count - 1
        })
    }

    /// Takes `ranks`, which no target has any more, out of the answers, and a target's new slot in.
    pub(crate) fn retire(&mut self, ranks: Vec<Rank>, come: Option<(u32, &Target)>) {
        let gone: Vec<u32> = ranks.iter().map(|it| it.slot).collect();
        for rank in ranks {
            self.retired.push_back(Retired {
                slot: rank.slot,
                domain: rank.domain,
                runs: rank.runs,
            });
        }
        self.publish(&gone, come);
    }

    /// Shows readers which slots are in use, and by whom.
    fn publish(&mut self, gone: &[u32], come: Option<(u32, &Target)>) {
        if gone.is_empty() && come.is_none() {
            return;
        }
        let board = self.forest.board.clone();
        let targets = &board.targets;
        let version = targets.version.load(Ordering::Relaxed) + 2;
        let directory = targets.directory.write();
        let mut directory = directory.unwrap_or_else(PoisonError::into_inner);
        begin_write(&targets.version);
        self.forest.make_room_for_slots(self.slots.count);
        for slot in gone {
            board.set_live(*slot, false);
            directory.set(version, *slot, None);
        }
        if let Some((slot, target)) = come {
            board.set_live(slot, true);
            directory.set(version, slot, Some(target.clone()));
        }
        drop(directory);
        end_write(&targets.version);
    }
}

fn store(work: &mut Work<'_>, stored: &StoredBlocks, chain: &mut Chain) {
    let count = stored.blocks.len();
    if count == 0 {
        return;
    }
    let hint = work.rank.namespace;
    let secrets = &work.forest.board.secrets;
    let key = || secrets.key(&stored.namespace);
    let namespace = work.forest.namespaces.number(&stored.namespace, hint, key);
    work.read_ahead(stored);
    let parent = stored.parent.as_ref().map(|it| {
        let at = work.resolve(stored.group, name_of(it))?;
        let of = work.forest.info[at.run as usize].namespace;
        (of == namespace).then_some(at)
    });
    if parent == Some(None) || !work.has_room(count) {
        work.forest.namespaces.release(namespace);
        work.lose_track();
        work.applied.orphans += count as u64;
        return;
    }
    work.rank.namespace = namespace;
    let under = Under {
        namespace,
        group: stored.group,
        tier: stored.tier,
    };
    chain.read(stored);
    work.store(chain, parent.flatten(), under);
    work.announce(stored.tier, count);
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
