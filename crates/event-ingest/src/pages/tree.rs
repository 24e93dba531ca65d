//! Pages as the engine chains them, and where the blocks lie among them.
//!
//! A page takes 32 bytes here, four for each of its tokens, and about 27 in the table of names; what a block has
//! of its own, some 30 bytes, is shared by its pages.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use domain::{BlockHash, Tier};

/// How an engine calls a page: the bit pattern of its integer hash.
pub(crate) type PageName = u64;

/// A page's place in the table, from 1; others may have it once the page is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot(NonZeroU32);

/// The tiers in which a page lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tiers(u8);

/// What the log was told of a block, as kept with its last page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing: it is not whole.
    #[default]
    Nothing,
    /// That it lies in this tier.
    Said(Tier),
    /// It is whole and lies in this tier, but it cannot be said now: the block before it is not there, or its
    /// content is not known. An incarnation of this process may have said it.
    Withheld(Tier),
}

/// What sets a chain of pages apart from others with the same tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extra {
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) name: PageName,
    pub(super) parent: Option<Slot>,
    first_child: Option<Slot>,
    next_sibling: Option<Slot>,
    previous_sibling: Option<Slot>,
    /// How many pages of its block come before it.
    pub(super) place: u16,
    pub(super) tiers: Tiers,
    pub(super) told: Told,
    /// Whether its tokens are known: not after a restart.
    pub(super) known: bool,
}

/// Sizes in tokens and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Tokens a page.
    pub(crate) page: u32,
    /// Pages a block, at least 2.
    pub(crate) pages: u16,
}

/// All pages of one rank. A page that lies nowhere stays for as long as others hang on it.
#[derive(Debug)]
pub(super) struct Tree {
    geometry: Geometry,
    names: HashMap<PageName, Slot>,
    pages: Vec<Page>,
    /// The tokens of each slot.
    tokens: Vec<u32>,
    free: Vec<Slot>,
    /// What the first pages of blocks say of their chain, where it is not plain.
    extras: HashMap<Slot, Arc<Extra>>,
    /// The content of the blocks that end with these pages, once it is known.
    contents: HashMap<Slot, BlockHash>,
}

impl Slot {
    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl Tiers {
    /// From bits as [`Self::bits`] gives them; others are ignored.
    pub(crate) fn of_bits(bits: u8) -> Self {
        Self(bits & 0b111)
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Whether it was not there.
    pub(crate) fn insert(&mut self, tier: Tier) -> bool {
        let before = self.0;
        self.0 |= 1 << tier as u8;
        before != self.0
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, tier: Tier) -> bool {
        let before = self.0;
        self.0 &= !(1 << tier as u8);
        before != self.0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The fastest of them.
    pub(crate) fn fastest(self) -> Option<Tier> {
        let all = [Tier::Gpu, Tier::Host, Tier::Disk];
        all.into_iter()
            .find(|tier| self.0 & (1 << *tier as u8) != 0)
    }
}

impl Tree {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            names: HashMap::new(),
            pages: Vec::new(),
            tokens: Vec::new(),
            free: Vec::new(),
            extras: HashMap::new(),
            contents: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Slots in use or free.
    pub(super) fn slots(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn find(&self, name: PageName) -> Option<Slot> {
        self.names.get(&name).copied()
    }

    pub(super) fn page(&self, slot: Slot) -> &Page {
        &self.pages[slot.index()]
    }

    pub(super) fn page_mut(&mut self, slot: Slot) -> &mut Page {
        &mut self.pages[slot.index()]
    }

    /// The page at a place of the table, if one is there.
    pub(super) fn at(&self, index: usize) -> Option<Slot> {
        let page = self.pages.get(index)?;
        self.find(page.name).filter(|slot| slot.index() == index)
    }

    /// Whether the page that had this slot when it was last looked at is there.
    pub(super) fn is_there(&self, slot: Slot) -> bool {
        self.at(slot.index()) == Some(slot)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Slot> {
        self.names.values().copied()
    }

    pub(super) fn is_root(&self, slot: Slot) -> bool {
        self.page(slot).parent.is_none()
    }

    /// Whether a block ends with this page.
    pub(super) fn is_end(&self, slot: Slot) -> bool {
        self.page(slot).place + 1 == self.geometry.pages
    }

    pub(super) fn first_child(&self, slot: Slot) -> Option<Slot> {
        self.page(slot).first_child
    }

    pub(super) fn children(&self, slot: Slot) -> impl Iterator<Item = Slot> + '_ {
        let next = |it: &Slot| self.page(*it).next_sibling;
        std::iter::successors(self.page(slot).first_child, next)
    }

    /// Adds a page that lies nowhere yet. `extra` is that of a root; all others have their parent's.
    pub(super) fn add(
        &mut self,
        name: PageName,
        parent: Option<Slot>,
        extra: Option<Arc<Extra>>,
    ) -> Slot {
        let place = match parent {
            Some(parent) if !self.is_end(parent) => self.page(parent).place + 1,
            _ => 0,
        };
        let next_sibling = parent.and_then(|it| self.page(it).first_child);
        let slot = self.place(Page {
            name,
            parent,
            first_child: None,
            next_sibling,
            previous_sibling: None,
            place,
            tiers: Tiers::default(),
            told: Told::Nothing,
            known: false,
        });
        if let Some(parent) = parent {
            self.page_mut(parent).first_child = Some(slot);
        }
        if let Some(sibling) = next_sibling {
            self.page_mut(sibling).previous_sibling = Some(slot);
        }
        self.names.insert(name, slot);
        let extra = match parent {
            Some(parent) if place == 0 => self.extra(parent),
            Some(_) => None,
            None => extra,
        };
        if let Some(extra) = extra {
            self.extras.insert(slot, extra);
        }
        slot
    }

    fn place(&mut self, page: Page) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.pages[slot.index()] = page;
            return slot;
        }
        self.pages.push(page);
        let slot = u32::try_from(self.pages.len())
            .ok()
            .and_then(NonZeroU32::new);
        let slot = slot.expect("the bound on pages is below 2^32");
        let tokens = self.pages.len() * self.geometry.page as usize;
        self.tokens.resize(tokens, 0);
        Slot(slot)
    }

    /// Takes away a page without children.
    pub(super) fn drop_leaf(&mut self, slot: Slot) {
        let page = self.page(slot).clone();
        debug_assert!(page.first_child.is_none(), "others hang on the page");
        match (page.previous_sibling, page.parent) {
            (Some(previous), _) => self.page_mut(previous).next_sibling = page.next_sibling,
            (None, Some(parent)) => self.page_mut(parent).first_child = page.next_sibling,
            (None, None) => {}
        }
        if let Some(next) = page.next_sibling {
            self.page_mut(next).previous_sibling = page.previous_sibling;
        }
        self.names.remove(&page.name);
        self.extras.remove(&slot);
        self.contents.remove(&slot);
        self.free.push(slot);
    }

    /// Takes note of a page's tokens, and says whether they agree with what was known.
    pub(super) fn learn(&mut self, slot: Slot, tokens: &[u32]) -> bool {
        let range = self.tokens_of(slot);
        if self.page(slot).known {
            return self.tokens[range] == *tokens;
        }
        self.tokens[range].copy_from_slice(tokens);
        self.page_mut(slot).known = true;
        true
    }

    fn tokens_of(&self, slot: Slot) -> std::ops::Range<usize> {
        let size = self.geometry.page as usize;
        slot.index() * size..(slot.index() + 1) * size
    }

    /// The pages of the block that ends with `end`, last first.
    pub(super) fn block(&self, end: Slot) -> impl Iterator<Item = Slot> + '_ {
        let up = |it: &Slot| match self.page(*it).place {
            0 => None,
            _ => self.page(*it).parent,
        };
        std::iter::successors(Some(end), up)
    }

    /// The first page of the block in which `slot` is.
    fn first_of_block(&self, slot: Slot) -> Slot {
        self.block(slot).last().unwrap_or(slot)
    }

    /// The tier of the block that ends with `end`: that of its slowest page, each page being in its fastest. None
    /// if a page is missing.
    pub(super) fn tier(&self, end: Slot) -> Option<Tier> {
        let mut slowest = Tier::Gpu;
        for page in self.block(end) {
            slowest = slowest.max(self.page(page).tiers.fastest()?);
        }
        Some(slowest)
    }

    /// The last page of the block before the one in which `slot` is.
    pub(super) fn end_before(&self, slot: Slot) -> Option<Slot> {
        self.page(self.first_of_block(slot)).parent
    }

    pub(super) fn extra(&self, slot: Slot) -> Option<Arc<Extra>> {
        self.extras.get(&self.first_of_block(slot)).cloned()
    }

    pub(super) fn content(&self, end: Slot) -> Option<BlockHash> {
        self.contents.get(&end).copied()
    }

    pub(super) fn set_content(&mut self, end: Slot, content: BlockHash) {
        self.contents.insert(end, content);
    }

    /// The tokens of the block that ends with `end`; none if some are not known.
    pub(super) fn block_tokens(&self, end: Slot) -> Option<Vec<u32>> {
        let mut pages: Vec<Slot> = self.block(end).collect();
        pages.reverse();
        let mut tokens = Vec::with_capacity(pages.len() * self.geometry.page as usize);
        for page in pages {
            if !self.page(page).known {
                return None;
            }
            tokens.extend_from_slice(&self.tokens[self.tokens_of(page)]);
        }
        Some(tokens)
    }

    /// The last pages of the blocks of which `slot` is a part.
    pub(super) fn ends_of(&self, slot: Slot) -> Vec<Slot> {
        let mut ends = Vec::new();
        let mut todo = vec![slot];
        while let Some(page) = todo.pop() {
            if self.is_end(page) {
                ends.push(page);
            } else {
                todo.extend(self.children(page));
            }
        }
        ends
    }
}
