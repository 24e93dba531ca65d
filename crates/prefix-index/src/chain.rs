//! The blocks of an operation as plain numbers.

use domain::{BlockHash, EngineHash, SequenceHash, StoredBlocks, Tier};
use xxhash_rust::xxh3::xxh3_64;

use crate::table::Place;

/// A chain to be stored, as plain numbers.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) blocks: Vec<u64>,
    pub(crate) names: Vec<u64>,
    /// From the first new block on.
    pub(crate) sequences: Vec<u64>,
    /// Where it was stored, and how many blocks in each place.
    pub(crate) stretches: Vec<(Place, usize)>,
}

/// Under what a chain is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Under {
    pub(crate) namespace: u32,
    pub(crate) group: u32,
    pub(crate) tier: Tier,
}

/// A name as a number: a text or digest is known by its xxh3-64.
#[inline]
pub(crate) fn name_of(engine_hash: &EngineHash) -> u64 {
    match engine_hash {
        EngineHash::Int(name) => *name,
        EngineHash::Bytes(bytes) => xxh3_64(bytes),
    }
}

impl Chain {
    /// Takes in an operation's blocks.
    pub(crate) fn read(&mut self, stored: &StoredBlocks) {
        self.blocks.clear();
        self.names.clear();
        self.blocks
            .extend(stored.blocks.iter().map(|it| it.block_hash.get()));
        self.names
            .extend(stored.blocks.iter().map(|it| name_of(&it.engine_hash)));
    }

    /// Takes in names alone.
    pub(crate) fn read_names(&mut self, engine_hashes: &[EngineHash]) {
        self.names.clear();
        self.names.extend(engine_hashes.iter().map(name_of));
    }

    /// Chains the sequence hashes of the blocks from `from` on behind `parent`.
    pub(crate) fn sequence(&mut self, from: usize, parent: Option<u64>) {
        self.sequences.clear();
        let mut last = parent.map(SequenceHash::new);
        for block in &self.blocks[from..] {
            let block = BlockHash::new(*block);
            let next = last.map_or_else(|| SequenceHash::root(block), |it| it.extend(block));
            self.sequences.push(next.get());
            last = Some(next);
        }
    }
}
