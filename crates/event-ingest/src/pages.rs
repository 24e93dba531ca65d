//! Gathers pages that are smaller than a block into blocks.
//!
//! An engine may cache in pages of as little as one token. A block is there once all its pages are, along one chain
//! from a multiple of the block's size on; it is called after its last page, and the block it extends after the page
//! before its first. Where chains branch within a block, several blocks share pages, and each goes with any of its
//! pages. A page lies in a tier once, however often it is announced there: radix caches have one copy of each.
//!
//! A block lies in the tier of its slowest page, each page counting where it is fastest: that is what using the
//! block costs.
//!
//! A block is said only when the one before it has been, since an index knows a block by its whole prefix; when the
//! one before comes, those after it follow. What is said is never more than what is there.

mod record;
mod telling;
mod tree;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use domain::{
    BlockSize, EngineHash, HashSeed, KvOp, ModelName, Namespace, ResetReason, SessionTag,
    StoredBlock, Tier, block_hashes,
};

pub(crate) use record::{Changes, Kept, Record};
use telling::Telling;
pub(crate) use tree::{Extra, Geometry, PageName, Tiers, Told};
use tree::{Slot, Tree};

/// Pages remembered of one rank: a quarter of a gigabyte at one token a page, and more tokens than one rank of a large
/// engine holds on GPU and host together. Beyond it, chains that came early are let go from their ends.
const MAX_PAGES: usize = 1 << 22;
/// Pages let go at a time.
const EVICTED_AT_ONCE: usize = 4_096;

/// A chain of pages as an engine announces it.
#[derive(Clone, Debug)]
pub(crate) struct Chain<'a> {
    /// The page that the first one extends; none at the root.
    pub(crate) parent: Option<PageName>,
    /// The pages, in order.
    pub(crate) names: &'a [PageName],
    /// Their tokens.
    pub(crate) tokens: &'a [u32],
    pub(crate) tier: Tier,
    /// What a root says of its chain.
    pub(crate) extra: Option<Arc<Extra>>,
    pub(crate) session: Option<SessionTag>,
}

/// Pages by what became of them.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// One rank's pages.
#[derive(Debug)]
pub(crate) struct Pages {
    model: ModelName,
    geometry: Geometry,
    block_size: BlockSize,
    limit: usize,
    tree: Tree,
    /// Where the next page to be let go is looked for.
    hand: usize,
    /// Whether a whole block could not be said because its tokens are not known any more.
    lost_content: bool,
    /// Pages that have changed since [`Pages::changes`].
    touched: HashSet<PageName>,
    cleared: bool,
    counts: Counts,
}

impl Geometry {
    /// How pages of `page_size` make up blocks of `block_size`; none where they do not, or are blocks themselves.
    pub(crate) fn of(page_size: BlockSize, block_size: BlockSize) -> Option<Self> {
        let (page, block) = (page_size.get(), block_size.get());
        let pages = u16::try_from(block / page).ok()?;
        (page < block && block % page == 0).then_some(Self { page, pages })
    }
}

impl Pages {
    pub(crate) fn new(model: ModelName, geometry: Geometry, block_size: BlockSize) -> Self {
        Self {
            model,
            geometry,
            block_size,
            limit: MAX_PAGES,
            tree: Tree::new(geometry),
            hand: 0,
            lost_content: false,
            touched: HashSet::new(),
            cleared: true,
            counts: Counts::new(),
        }
    }

    /// Tokens a page.
    pub(crate) fn page_size(&self) -> u32 {
        self.geometry.page
    }

    /// Forgets all pages.
    pub(crate) fn clear(&mut self) {
        self.tree = Tree::new(self.geometry);
        self.hand = 0;
        self.lost_content = false;
        self.touched.clear();
        self.cleared = true;
    }

    /// What became of pages since the last time.
    pub(crate) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Pages of `chain` lie in its tier from now on.
    pub(crate) fn store(&mut self, group: u32, chain: &Chain<'_>) -> Vec<KvOp> {
        let mut telling = Telling::new(group, chain.session);
        self.make_room(chain.names.len(), &mut telling);
        let mut parent = None;
        if let Some(name) = chain.parent {
            parent = self.tree.find(name);
            let Some(parent) = parent else {
                self.count("orphan", chain.names.len());
                return telling.ops;
            };
            // An engine whose names leave out the salt may take another sequence's page for the parent.
            if chain.extra.is_some() && chain.extra != self.tree.extra(parent) {
                self.count("other_salt", chain.names.len());
                return telling.ops;
            }
        }
        let mut changed = Vec::new();
        let tokens = chain.tokens.chunks_exact(self.geometry.page as usize);
        for (name, tokens) in chain.names.iter().zip(tokens) {
            let slot = self.page_for(*name, parent, tokens, chain.extra.as_ref(), &mut telling);
            let Some((slot, learnt)) = slot else {
                self.count("contradiction", 1);
                break;
            };
            let stored = self.tree.page_mut(slot).tiers.insert(chain.tier);
            self.count(if stored { "stored" } else { "duplicate" }, 1);
            if stored || learnt {
                self.touched.insert(*name);
                changed.push(slot);
            }
            parent = Some(slot);
        }
        self.refresh_blocks_of(&changed, &mut telling);
        telling.ops
    }

    /// The page of that name at that place, new if need be, and whether its tokens were not known. One of that name
    /// elsewhere, or with another content, is gone, with all that hangs on it: the engine has only one page under a
    /// name. None if that takes away the parent itself.
    fn page_for(
        &mut self,
        name: PageName,
        parent: Option<Slot>,
        tokens: &[u32],
        extra: Option<&Arc<Extra>>,
        telling: &mut Telling,
    ) -> Option<(Slot, bool)> {
        if let Some(slot) = self.tree.find(name) {
            let known = self.tree.page(slot).known;
            let same_place = self.tree.page(slot).parent == parent;
            let same_chain = parent.is_some() || self.tree.extra(slot).as_ref() == extra;
            if same_place && same_chain && self.tree.learn(slot, tokens) {
                return Some((slot, !known));
            }
            let above = |it: &Slot| self.tree.page(*it).parent;
            if std::iter::successors(parent, above).any(|it| it == slot) {
                return None;
            }
            self.count("renamed", 1);
            let hung_on = self.tree.page(slot).parent;
            self.drop_subtree(slot, telling);
            if hung_on != parent {
                self.prune(hung_on.as_slice());
            }
            if parent.is_some_and(|it| !self.tree.is_there(it)) {
                return None;
            }
        }
        let slot = self.tree.add(name, parent, extra.cloned());
        self.tree.learn(slot, tokens);
        Some((slot, true))
    }

    /// Pages left a tier.
    pub(crate) fn remove(&mut self, group: u32, names: &[PageName], tier: Tier) -> Vec<KvOp> {
        let mut telling = Telling::new(group, None);
        let mut changed = Vec::new();
        for name in names {
            match self.tree.find(*name) {
                Some(slot) if self.tree.page_mut(slot).tiers.remove(tier) => {
                    self.count("removed", 1);
                    self.touched.insert(*name);
                    changed.push(slot);
                }
                _ => self.count("unknown", 1),
            }
        }
        self.refresh_blocks_of(&changed, &mut telling);
        self.prune(&changed);
        telling.ops
    }

    /// A page went from one tier to another.
    pub(crate) fn shift(&mut self, group: u32, name: PageName, from: Tier, to: Tier) -> Vec<KvOp> {
        let mut telling = Telling::new(group, None);
        match self.tree.find(name) {
            Some(slot) if self.tree.page_mut(slot).tiers.remove(from) => {
                self.count("moved", 1);
                self.tree.page_mut(slot).tiers.insert(to);
                self.touched.insert(name);
                self.refresh_blocks_of(&[slot], &mut telling);
            }
            _ => self.count("unknown", 1),
        }
        telling.ops
    }

    /// All that is there, said anew from the first block on, for a reader that has missed something.
    pub(crate) fn tell_all(&mut self, group: u32) -> Vec<KvOp> {
        let mut telling = Telling::new(group, None);
        telling.ops.push(if self.lost_content {
            let reason = ResetReason::ReplayGone;
            KvOp::Reset { reason }
        } else {
            KvOp::Cleared
        });
        let mut roots = Vec::new();
        let all: Vec<Slot> = self.tree.all().collect();
        for slot in all {
            if self.tree.is_root(slot) {
                roots.push(slot);
            }
            // A reader that has missed nothing knows more than what is said now.
            if let Told::Said(tier) = self.tree.page(slot).told {
                self.tell(slot, Told::Withheld(tier));
            }
        }
        roots.sort_unstable();
        for root in roots {
            telling.todo.extend(self.tree.ends_of(root));
        }
        while let Some(end) = telling.todo.pop_front() {
            if let Some(tier) = self.tree.tier(end) {
                self.say(end, tier, &mut telling);
            }
        }
        telling.ops
    }

    /// The blocks that were said and still stand, by their names.
    pub(crate) fn said(&self) -> BTreeMap<PageName, Tier> {
        let said = |slot: Slot| {
            let page = self.tree.page(slot);
            match page.told {
                Told::Said(tier) => Some((page.name, tier)),
                Told::Nothing | Told::Withheld(_) => None,
            }
        };
        self.tree.all().filter_map(said).collect()
    }

    fn refresh_blocks_of(&mut self, changed: &[Slot], telling: &mut Telling) {
        let mut seen = HashSet::new();
        for slot in changed {
            let ends = self.tree.ends_of(*slot);
            telling
                .todo
                .extend(ends.into_iter().filter(|end| seen.insert(*end)));
        }
        while let Some(end) = telling.todo.pop_front() {
            self.refresh(end, telling);
        }
    }

    /// Says what has changed of the block that ends with `end`.
    fn refresh(&mut self, end: Slot, telling: &mut Telling) {
        let page = self.tree.page(end);
        let name = page.name;
        match (page.told, self.tree.tier(end)) {
            (Told::Nothing, None) => {}
            (Told::Nothing, Some(tier)) => self.say(end, tier, telling),
            (Told::Said(tier) | Told::Withheld(tier), None) => {
                telling.removed(name, tier);
                self.tell(end, Told::Nothing);
            }
            (Told::Said(from), Some(to)) => {
                if from != to {
                    telling.retiered(name, from, to);
                    self.tell(end, Told::Said(to));
                }
            }
            (Told::Withheld(from), Some(to)) => {
                if from != to {
                    telling.retiered(name, from, to);
                    self.tell(end, Told::Withheld(to));
                }
                if self.can_say(end) {
                    // A reader may have it from an earlier time, and would count two copies.
                    telling.removed(name, to);
                    self.say(end, to, telling);
                }
            }
        }
    }

    /// Says that a whole block is there, if it can be said.
    fn say(&mut self, end: Slot, tier: Tier, telling: &mut Telling) {
        if !self.can_say(end) {
            if self.tree.content(end).is_none() {
                self.count("content_lost", 1);
                self.lost_content = true;
            }
            self.tell(end, Told::Withheld(tier));
            return;
        }
        let content = self
            .tree
            .content(end)
            .expect("what can be said has content");
        let extra = self.tree.extra(end);
        let namespace = self.namespace(extra.as_deref());
        let before = self.tree.end_before(end);
        let block = StoredBlock {
            engine_hash: EngineHash::Int(self.tree.page(end).name),
            block_hash: content,
        };
        telling.stored(
            before.map(|it| self.tree.page(it).name),
            block,
            tier,
            namespace,
        );
        self.tell(end, Told::Said(tier));
        for child in self.tree.children(end) {
            telling.todo.extend(self.tree.ends_of(child));
        }
    }

    /// Whether the block before it has been said and its content is known.
    fn can_say(&mut self, end: Slot) -> bool {
        if self.tree.content(end).is_none()
            && let Some(tokens) = self.tree.block_tokens(end)
        {
            let extra = self.tree.extra(end);
            let lora = extra.as_ref().and_then(|it| it.lora.as_deref());
            let salt = extra.as_ref().and_then(|it| it.salt.as_deref());
            let hashes = block_hashes(&tokens, self.block_size, HashSeed::of(lora, salt));
            if let [content] = hashes[..] {
                self.tree.set_content(end, content);
                self.touched.insert(self.tree.page(end).name);
            }
        }
        let before = self.tree.end_before(end);
        let follows = before.is_none_or(|it| matches!(self.tree.page(it).told, Told::Said(_)));
        follows && self.tree.content(end).is_some()
    }

    fn tell(&mut self, end: Slot, told: Told) {
        let page = self.tree.page_mut(end);
        page.told = told;
        self.touched.insert(page.name);
    }

    fn namespace(&self, extra: Option<&Extra>) -> Namespace {
        Namespace {
            model: self.model.clone(),
            lora: extra.and_then(|it| it.lora.clone()),
            salt: extra.and_then(|it| it.salt.clone()),
            block_size: self.block_size,
        }
    }

    /// Drops those of `slots` that lie nowhere and that nothing hangs on, and what was kept only for them.
    fn prune(&mut self, slots: &[Slot]) {
        for slot in slots {
            let mut next = self.tree.is_there(*slot).then_some(*slot);
            while let Some(slot) = next {
                let page = self.tree.page(slot);
                if !page.tiers.is_empty() || self.tree.first_child(slot).is_some() {
                    break;
                }
                next = page.parent;
                self.touched.insert(page.name);
                self.tree.drop_leaf(slot);
            }
        }
    }

    /// Drops a page and all that hangs on it.
    fn drop_subtree(&mut self, top: Slot, telling: &mut Telling) {
        let mut all = vec![top];
        let mut index = 0;
        while let Some(slot) = all.get(index).copied() {
            all.extend(self.tree.children(slot));
            index += 1;
        }
        for slot in all.iter().rev() {
            self.let_go(*slot, telling);
        }
    }

    /// Drops a page without children, wherever it lies.
    fn let_go(&mut self, slot: Slot, telling: &mut Telling) {
        let page = self.tree.page(slot);
        let (name, told) = (page.name, page.told);
        if let Told::Said(tier) | Told::Withheld(tier) = told {
            telling.removed(name, tier);
        }
        self.touched.insert(name);
        self.tree.drop_leaf(slot);
    }

    /// Lets go of chains, from their ends, until `more` pages fit.
    fn make_room(&mut self, more: usize, telling: &mut Telling) {
        let room = self.limit.saturating_sub(more);
        while room < self.tree.len() {
            let Some(mut slot) = self.tree.at(self.hand) else {
                self.hand = (self.hand + 1) % self.tree.slots().max(1);
                continue;
            };
            while let Some(child) = self.tree.first_child(slot) {
                slot = child;
            }
            let mut next = Some(slot);
            let mut evicted = 0;
            while let Some(slot) = next.filter(|it| self.tree.first_child(*it).is_none()) {
                next = self.tree.page(slot).parent;
                self.let_go(slot, telling);
                evicted += 1;
                if evicted == EVICTED_AT_ONCE || self.tree.len() <= room {
                    break;
                }
            }
            self.count("evicted", evicted);
        }
    }

    fn count(&mut self, what: &'static str, pages: usize) {
        *self.counts.entry(what).or_default() += pages as u64;
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
