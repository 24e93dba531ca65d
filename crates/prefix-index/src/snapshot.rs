//! One target's state as plain data, for whoever keeps it.

use domain::{EngineHash, Namespace, SequenceHash, Target};

use crate::holders::ALL_TIERS;
use crate::namespaces::Block;
use crate::rank::Name;
use crate::{Claims, Fenced, PrefixIndex};

/// What one target holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSnapshot {
    /// How complete it is.
    pub claims: Claims,
    /// The namespaces that the blocks belong to.
    pub namespaces: Vec<Namespace>,
    /// The blocks, in no order.
    pub blocks: Vec<HeldBlock>,
}

/// One engine hash of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// Its place in [`RankSnapshot::namespaces`].
    pub namespace: u32,
    /// The engine's KV cache group.
    pub group: u32,
    /// The engine's name for it.
    pub engine_hash: EngineHash,
    /// Its content and everything before it.
    pub sequence: SequenceHash,
    /// How often it is held.
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
}

impl PrefixIndex {
    /// What `target` holds.
    pub fn snapshot(&self, target: &Target) -> Option<RankSnapshot> {
        let rank = self.ranks.get(target)?;
        let mut places = Vec::new();
        let mut snapshot = RankSnapshot {
            claims: rank.claims,
            namespaces: Vec::new(),
            blocks: Vec::with_capacity(rank.names().len()),
        };
        for (name, named) in rank.names() {
            let id = named.block.namespace;
            let place = places.iter().position(|it| *it == id).unwrap_or_else(|| {
                let table = self
                    .namespaces
                    .at(id)
                    .expect("a block's namespace is in use");
                snapshot.namespaces.push(table.name.clone());
                places.push(id);
                places.len() - 1
            });
            let [gpu, host, disk] = named.copies;
            snapshot.blocks.push(HeldBlock {
                namespace: place as u32,
                group: name.group,
                engine_hash: name.engine_hash.clone(),
                sequence: named.block.sequence,
                copies: Copies { gpu, host, disk },
            });
        }
        Some(snapshot)
    }

    /// Adds what `snapshot` holds to `target`, which becomes known by it: one snapshot may be restored in
    /// several pieces. After an error a part of the blocks may have been added.
    pub fn restore(
        &mut self,
        target: &Target,
        snapshot: &RankSnapshot,
    ) -> Result<(), RestoreError> {
        self.admit(target).map_err(|source| RestoreError::Fenced {
            target: target.clone(),
            source,
        })?;
        self.in_shadow(|it| {
            it.restore(target, snapshot).ok();
        });
        let (rank, all) = self.parts(target);
        rank.claims = snapshot.claims;
        for held in &snapshot.blocks {
            let name = snapshot.namespaces.get(held.namespace as usize);
            let name = name.ok_or_else(|| RestoreError::Namespace {
                target: target.clone(),
                namespace: held.namespace,
            })?;
            let namespace = all.intern(name);
            let block = Block {
                namespace,
                sequence: held.sequence,
            };
            let name = Name {
                group: held.group,
                engine_hash: held.engine_hash.clone(),
            };
            let Copies { gpu, host, disk } = held.copies;
            for (tier, copies) in ALL_TIERS.into_iter().zip([gpu, host, disk]) {
                if 0 < copies {
                    rank.store(all, name.clone(), block, (tier, copies));
                }
            }
            all.release(namespace);
        }
        Ok(())
    }
}
