//! One target's state as plain data, for whoever keeps it.

use std::collections::HashMap;

use domain::{BlockHash, EngineHash, Namespace, Target};

use crate::{Claims, Fenced};

/// What one target holds, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSnapshot {
    /// How complete it is.
    pub claims: Claims,
    /// The namespaces that the blocks belong to.
    pub namespaces: Vec<Namespace>,
    /// The blocks, each behind the one that it extends; chains that part from each other are near each other.
    pub blocks: Vec<HeldBlock>,
}

/// One engine hash of a target, or a block that it does not hold on the way to one that it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// Its place in [`RankSnapshot::namespaces`].
    pub namespace: u32,
    /// The place in [`RankSnapshot::blocks`] of the block that it extends; none at the root.
    pub parent: Option<u32>,
    /// The hash of its content.
    pub block_hash: BlockHash,
    /// The engine's KV cache group.
    pub group: u32,
    /// The engine's name for it. A name of bytes is given as the integer that the index knows it by, their
    /// xxh3-64, which is as good in any later operation.
    pub engine_hash: EngineHash,
    /// How often it is held. Without copies it is only on the way, and its group and name mean nothing.
    pub copies: Copies,
}

/// Copies of a block by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Copies {
    /// In GPU memory.
    pub gpu: u32,
    /// In host memory.
    pub host: u32,
    /// On local disk.
    pub disk: u32,
}

/// Why a snapshot was not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Its target's incarnation has ended.
    #[error("restore {target}")]
    Fenced {
        /// The target.
        target: Target,
        /// What ended it.
        #[source]
        source: Fenced,
    },
    /// A block names a namespace that the snapshot does not list.
    #[error("restore {target}: there is no namespace {namespace}")]
    Namespace {
        /// The target.
        target: Target,
        /// The place named.
        namespace: u32,
    },
    /// A block names a parent that is not before it, or not in its namespace.
    #[error("restore {target}: block {block} extends {parent}")]
    Parent {
        /// The target.
        target: Target,
        /// The block's place.
        block: u32,
        /// The place named.
        parent: u32,
    },
    /// The index has no more room.
    #[error("restore {target}: the index is full")]
    Full {
        /// The target.
        target: Target,
    },
}

impl RankSnapshot {
    /// Splits it into pieces of at least `blocks` blocks, each of which can be restored by itself and in any
    /// order. A piece repeats the blocks on the way to its own, so a chain is not cut before the piece has four
    /// times as many.
    pub fn pieces(&self, blocks: usize) -> Vec<Self> {
        let blocks = blocks.max(1);
        let mut pieces = Vec::new();
        let mut from = 0;
        for (index, block) in self.blocks.iter().enumerate() {
            let goes_on = block.parent.is_some_and(|it| it as usize + 1 == index);
            let limit = if goes_on { 4 * blocks } else { blocks };
            if limit <= index - from {
                pieces.push(self.piece(from, index));
                from = index;
            }
        }
        if from < self.blocks.len() {
            pieces.push(self.piece(from, self.blocks.len()));
        }
        pieces
    }

    fn piece(&self, from: usize, to: usize) -> Self {
        let mut piece = Self {
            claims: self.claims,
            namespaces: Vec::new(),
            blocks: Vec::new(),
        };
        let mut namespaces = HashMap::new();
        let mut places: HashMap<u32, u32> = HashMap::new();
        let mut way = Vec::new();
        for index in from..to {
            let mut next = self.blocks[index].parent;
            while let Some(parent) = next.filter(|it| !places.contains_key(it)) {
                way.push(parent);
                next = self.blocks[parent as usize].parent;
            }
            let on_the_way = way.drain(..).rev().map(|it| (it, Copies::default()));
            let own = (index as u32, self.blocks[index].copies);
            for (place, copies) in on_the_way.chain([own]).collect::<Vec<_>>() {
                let block = &self.blocks[place as usize];
                let namespace = *namespaces.entry(block.namespace).or_insert_with(|| {
                    let name = &self.namespaces[block.namespace as usize];
                    piece.namespaces.push(name.clone());
                    piece.namespaces.len() as u32 - 1
                });
                places.insert(place, piece.blocks.len() as u32);
                piece.blocks.push(HeldBlock {
                    namespace,
                    parent: block.parent.map(|it| places[&it]),
                    copies,
                    ..block.clone()
                });
            }
        }
        piece
    }
}
