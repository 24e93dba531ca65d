//! The ops that one event brings about, those of a kind in one.

use std::collections::VecDeque;

use domain::{EngineHash, KvOp, Namespace, SessionTag, StoredBlock, StoredBlocks, Tier};

use super::PageName;
use super::tree::Slot;

/// What one event brings about.
#[derive(Debug)]
pub(super) struct Telling {
    group: u32,
    session: Option<SessionTag>,
    pub(super) ops: Vec<KvOp>,
    /// The last pages of blocks that may have changed.
    pub(super) todo: VecDeque<Slot>,
}

impl Telling {
    pub(super) fn new(group: u32, session: Option<SessionTag>) -> Self {
        Self {
            group,
            session,
            ops: Vec::new(),
            todo: VecDeque::new(),
        }
    }

    pub(super) fn stored(
        &mut self,
        parent: Option<PageName>,
        block: StoredBlock,
        tier: Tier,
        namespace: Namespace,
    ) {
        let parent = parent.map(EngineHash::Int);
        if let Some(KvOp::Stored(last)) = self.ops.last_mut() {
            let goes_on =
                parent.is_some() && last.blocks.last().map(|it| &it.engine_hash) == parent.as_ref();
            if goes_on && last.tier == tier && last.namespace == namespace {
                last.blocks.push(block);
                return;
            }
        }
        self.ops.push(KvOp::Stored(StoredBlocks {
            group: self.group,
            parent,
            blocks: vec![block],
            tier,
            namespace,
            session: self.session,
        }));
    }

    pub(super) fn removed(&mut self, name: PageName, tier: Tier) {
        let name = EngineHash::Int(name);
        if let Some(KvOp::Removed {
            engine_hashes,
            tier: last,
            ..
        }) = self.ops.last_mut()
            && *last == tier
        {
            engine_hashes.push(name);
            return;
        }
        self.ops.push(KvOp::Removed {
            group: self.group,
            engine_hashes: vec![name],
            tier,
        });
    }

    pub(super) fn retiered(&mut self, name: PageName, was: Tier, is: Tier) {
        let name = EngineHash::Int(name);
        if let Some(KvOp::Retiered {
            engine_hashes,
            from,
            to,
            ..
        }) = self.ops.last_mut()
            && (*from, *to) == (was, is)
        {
            engine_hashes.push(name);
            return;
        }
        self.ops.push(KvOp::Retiered {
            group: self.group,
            engine_hashes: vec![name],
            from: was,
            to: is,
        });
    }
}
