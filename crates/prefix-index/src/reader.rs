//! Looking up while the writer applies.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};

use domain::{Namespace, OverlapGroup, SequenceHash, Target};

use crate::rank::extend;
use crate::{Answer, Overlap, PrefixIndex, Request};

/// Reads a [`PrefixIndex`] from any thread while its owner writes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader {
    index: Arc<RwLock<PrefixIndex>>,
    keys: Arc<RwLock<HashMap<u64, Namespace>>>,
    hasher: RandomState,
}

/// A namespace as lookups name it; the same for the index's whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceKey(pub(crate) u64);

impl Reader {
    pub(crate) fn new(index: Arc<RwLock<PrefixIndex>>) -> Self {
        Self {
            index,
            keys: Arc::default(),
            hasher: RandomState::new(),
        }
    }

    /// The key of `namespace`, to be kept by whoever asks often.
    pub fn key(&self, namespace: &Namespace) -> NamespaceKey {
        let key = self.hasher.hash_one(namespace);
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.insert(key, namespace.clone());
        NamespaceKey(key)
    }

    /// Who holds how much of `request`, into `answer`.
    pub fn lookup<'a>(
        &self,
        namespace: NamespaceKey,
        request: impl Into<Request<'a>>,
        answer: &mut Answer,
    ) {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let namespace = &keys[&namespace.0];
        let overlap = self.overlap(namespace, request);
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let words = index.live.words().len();
        *answer = Answer {
            words,
            known: overlap.stored,
            ..Answer::default()
        };
        for group in overlap.groups {
            answer.groups.push(group.depths);
            let mut bits = vec![0_u64; words];
            for target in &group.targets {
                let slot = index.ranks[target].slot.0 as usize;
                bits[slot / 64] |= 1 << (slot % 64);
            }
            answer.bits.extend(bits);
        }
    }

    /// The target that `slot` of `answer` means; none if it has gone since.
    pub fn target_of(&self, answer: &Answer, slot: u32) -> Option<Target> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(answer.targets_version, 0);
        let mut ranks = index.ranks.iter();
        ranks.find(|it| it.1.slot.0 == slot).map(|it| it.0.clone())
    }

    /// `answer` with its targets' names, deepest first; none if a target has come or gone since: ask again.
    pub fn name(&self, answer: &Answer) -> Option<Vec<OverlapGroup>> {
        let named = answer.groups().map(|(depths, bits)| {
            let slots = (0..bits.len() as u32 * 64)
                .filter(|slot| bits[*slot as usize / 64] >> (slot % 64) & 1 == 1);
            OverlapGroup {
                depths,
                targets: slots.filter_map(|it| self.target_of(answer, it)).collect(),
            }
        });
        Some(named.collect())
    }

    /// Who holds how much of `request`, with the targets' names.
    pub fn overlap<'a>(&self, namespace: &Namespace, request: impl Into<Request<'a>>) -> Overlap {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        match request.into() {
            Request::Sequences(hashes) => index.overlap(namespace, hashes),
            Request::Blocks(blocks) => {
                let mut last = None;
                let chain = blocks.iter().map(|it| {
                    let next = extend(last, *it);
                    last = Some(next);
                    next
                });
                let chain: Vec<SequenceHash> = chain.collect();
                index.overlap(namespace, &chain)
            }
            Request::Sparse(sparse) => {
                let mut overlap = index.overlap(namespace, sparse.hashes());
                let deep = |places: u32| match places {
                    0 => 0,
                    places => sparse.depth(places as usize - 1),
                };
                for group in &mut overlap.groups {
                    group.depths.gpu = deep(group.depths.gpu);
                    group.depths.host = deep(group.depths.host);
                    group.depths.disk = deep(group.depths.disk);
                }
                overlap.stored = deep(overlap.stored);
                overlap
            }
        }
    }
}
