//! The index, as events make it, and what requests carried.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{
    BlockSize, Epoch, KvOp, ModelName, Namespace, SequenceHash, Target, TargetState, Timestamp,
    WorkerId,
};
use prefix_index::{Carried, Claims, PrefixIndex};
use routing::OverlapView;

use super::feed::{Feed, Message};

/// Blocks whose history is kept at most: a gigabyte.
const MAX_HISTORY: usize = 1 << 25;
/// And at least.
const MIN_HISTORY: usize = 1 << 16;

pub(super) struct Index {
    index: PrefixIndex,
    carried: Carried,
    model: ModelName,
    block_size: BlockSize,
    kv_blocks: u32,
    namespaces: BTreeMap<u32, Namespace>,
    partial: BTreeSet<Target>,
}

impl Index {
    /// An empty index of a fleet that is to hear of so many blocks.
    pub(super) fn new(
        model: ModelName,
        block_size: BlockSize,
        kv_blocks: u32,
        blocks: usize,
    ) -> Self {
        let bound = blocks.clamp(MIN_HISTORY, MAX_HISTORY);
        Self {
            index: PrefixIndex::new(bound),
            carried: Carried::new(bound),
            model,
            block_size,
            kv_blocks,
            namespaces: BTreeMap::new(),
            partial: BTreeSet::new(),
        }
    }

    /// A tenant's.
    pub(super) fn namespace(&mut self, tenant: u32) -> &Namespace {
        self.namespaces.entry(tenant).or_insert_with(|| Namespace {
            model: self.model.clone(),
            lora: None,
            salt: (tenant > 0).then(|| format!("tenant-{tenant}").into()),
            block_size: self.block_size,
        })
    }

    /// What is known of a request. Asked for the first time, it is carried from then on.
    pub(super) fn look_up(
        &mut self,
        tenant: u32,
        chain: &[SequenceHash],
        first: bool,
        feed: &Feed,
        now: Timestamp,
    ) -> OverlapView {
        let namespace = self.namespace(tenant).clone();
        let overlap = self.index.overlap(&namespace, chain);
        let carried = self.carried.depth(&namespace, chain);
        if first {
            self.carried.record(&namespace, chain);
        }
        let partial = self.partial.iter().map(|it| (it, TargetState::Partial));
        let mut not_ready: BTreeMap<&Target, TargetState> = partial.collect();
        not_ready.extend(feed.suspects(now).map(|it| (it, TargetState::Suspect)));
        OverlapView {
            block_size: self.block_size,
            ceiling: carried.max(overlap.stored),
            stored: overlap.stored,
            groups: overlap.groups,
            not_ready: not_ready
                .into_iter()
                .map(|(target, state)| (target.clone(), state))
                .collect(),
            unknown: BTreeSet::new(),
            index_age: Duration::ZERO,
        }
    }

    /// Takes in one operation of a rank. What comes of an incarnation that has ended is refused, as it should be.
    pub(super) fn apply(&mut self, target: &Target, op: &KvOp) {
        let Ok(_applied) = self.index.apply(target, op) else {
            return;
        };
    }

    /// Takes in a message, and looks whether all is known of its rank.
    pub(super) fn receive(&mut self, message: &Message) {
        let target = &message.target;
        message.ops.iter().for_each(|it| self.apply(target, it));
        if let Some(Claims::Partial { announced }) = self.index.claims(target)
            && u64::from(self.kv_blocks) <= announced
        {
            self.index.complete(target);
        }
        match self.index.claims(target) {
            Some(Claims::Partial { .. }) => self.partial.insert(target.clone()),
            Some(Claims::Complete) | None => self.partial.remove(target),
        };
    }

    /// An incarnation has ended.
    pub(super) fn fence(&mut self, worker: &WorkerId, epoch: Epoch) {
        self.index.fence(worker, epoch);
        self.partial
            .retain(|it| it.worker != *worker || epoch <= it.epoch);
    }
}
