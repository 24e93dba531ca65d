//! The physical blocks of one rank: a pool with a prefix cache over what nobody uses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use domain::SequenceHash;

/// The place of a block in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockIndex(u32);

impl BlockIndex {
    const fn at(self) -> usize {
        self.0 as usize
    }
}

/// A block is `empty` (on the stack of that name), in use (`users > 0`), or idle: unused, holding content,
/// and linked into the list that evictions take from.
#[derive(Clone, Debug, Default)]
struct Slot {
    users: u32,
    content: Option<SequenceHash>,
    older: Option<BlockIndex>,
    newer: Option<BlockIndex>,
    /// Another block with the same content.
    next_copy: Option<BlockIndex>,
}

/// All blocks of one rank.
#[derive(Debug)]
pub(crate) struct BlockPool {
    slots: Vec<Slot>,
    empty: Vec<BlockIndex>,
    oldest: Option<BlockIndex>,
    newest: Option<BlockIndex>,
    idle: u32,
    /// The first copy of each content. Never iterated: its order is not defined.
    first_copy: HashMap<SequenceHash, BlockIndex, BuildHasherDefault<SpreadBits>>,
}

impl BlockPool {
    /// `blocks` empty blocks.
    pub(crate) fn new(blocks: u32) -> Self {
        Self {
            slots: vec![Slot::default(); blocks as usize],
            empty: (0..blocks).rev().map(BlockIndex).collect(),
            oldest: None,
            newest: None,
            idle: 0,
            first_copy: HashMap::default(),
        }
    }

    /// Blocks in all.
    pub(crate) fn size(&self) -> u32 {
        // It was made from a u32.
        self.slots.len() as u32
    }

    /// Blocks that an allocation can get: the empty and the idle ones.
    pub(crate) fn room(&self) -> u32 {
        self.empty.len() as u32 + self.idle
    }

    /// Blocks that running requests hold.
    pub(crate) fn in_use(&self) -> u32 {
        self.size() - self.room()
    }

    /// How many leading blocks of `chain` are held.
    pub(crate) fn overlap(&self, chain: &[SequenceHash]) -> u32 {
        let held = |sequence: &&SequenceHash| self.first_copy.contains_key(*sequence);
        chain.iter().take_while(held).count() as u32
    }

    /// How many of `chain`, all held, are idle: room that using them takes away.
    pub(crate) fn idle_among(&self, chain: &[SequenceHash]) -> u32 {
        let idle = |sequence: &&SequenceHash| {
            self.first_copy
                .get(*sequence)
                .is_some_and(|block| self.slots[block.at()].users == 0)
        };
        chain.iter().filter(idle).count() as u32
    }

    /// Every content held, once each, in the order of its first copy's place.
    pub(crate) fn contents(&self) -> impl Iterator<Item = SequenceHash> + '_ {
        self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let content = slot.content?;
            (self.first_copy.get(&content)?.at() == at).then_some(content)
        })
    }

    /// Uses the block that holds `sequence`, if there is one.
    pub(crate) fn use_cached(&mut self, sequence: SequenceHash) -> Option<BlockIndex> {
        let block = *self.first_copy.get(&sequence)?;
        if self.slots[block.at()].users == 0 {
            self.unlink(block);
        }
        self.slots[block.at()].users += 1;
        Some(block)
    }

    /// Uses a block without content: an empty one, else the one idle for the longest time, whose content is
    /// then lost and added to `evicted`. None when there is no room.
    pub(crate) fn allocate(&mut self, evicted: &mut Vec<SequenceHash>) -> Option<BlockIndex> {
        let block = match self.empty.pop() {
            Some(block) => block,
            None => {
                let block = self.oldest?;
                self.unlink(block);
                evicted.extend(self.forget(block));
                block
            }
        };
        self.slots[block.at()].users = 1;
        Some(block)
    }

    /// Says what `block`, in use and without content so far, now holds.
    pub(crate) fn fill(&mut self, block: BlockIndex, sequence: SequenceHash) {
        self.slots[block.at()].content = Some(sequence);
        // A new copy goes second: the first stays the one that hits use, and no chain is walked.
        match self.first_copy.get(&sequence).copied() {
            None => {
                self.first_copy.insert(sequence, block);
            }
            Some(first) => {
                self.slots[block.at()].next_copy = self.slots[first.at()].next_copy.replace(block);
            }
        }
    }

    /// Ends one use of `block`. The last use leaves it idle, or empty if it has no content.
    pub(crate) fn release(&mut self, block: BlockIndex) {
        let slot = &mut self.slots[block.at()];
        slot.users -= 1;
        if slot.users > 0 {
            return;
        }
        if slot.content.is_none() {
            self.empty.push(block);
            return;
        }
        slot.older = self.newest;
        match self.newest {
            Some(newest) => self.slots[newest.at()].newer = Some(block),
            None => self.oldest = Some(block),
        }
        self.newest = Some(block);
        self.idle += 1;
    }

    /// Empties all idle blocks.
    pub(crate) fn clear_idle(&mut self) {
        while let Some(block) = self.oldest {
            self.unlink(block);
            self.forget(block);
            self.empty.push(block);
        }
    }

    /// Takes an idle block out of the list of idle ones.
    fn unlink(&mut self, block: BlockIndex) {
        let older = self.slots[block.at()].older.take();
        let newer = self.slots[block.at()].newer.take();
        match older {
            Some(older) => self.slots[older.at()].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.slots[newer.at()].older = older,
            None => self.newest = older,
        }
        self.idle -= 1;
    }

    /// Takes away a block's content.
    fn forget(&mut self, block: BlockIndex) -> Option<SequenceHash> {
        let content = self.slots[block.at()].content.take()?;
        let next_copy = self.slots[block.at()].next_copy.take();
        let mut copy = *self.first_copy.get(&content)?;
        if copy == block {
            match next_copy {
                Some(next) => self.first_copy.insert(content, next),
                None => self.first_copy.remove(&content),
            };
            return Some(content);
        }
        while let Some(next) = self.slots[copy.at()].next_copy {
            if next == block {
                self.slots[copy.at()].next_copy = next_copy;
                break;
            }
            copy = next;
        }
        Some(content)
    }
}

/// Hashes a key that is a hash already by one multiplication, so that small numbers spread as well.
#[derive(Default)]
struct SpreadBits(u64);

impl Hasher for SpreadBits {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // 2^64 divided by the golden ratio, made odd.
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}
