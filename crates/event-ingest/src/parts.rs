//! Cuts what one message says into parts that fit the bus.

use domain::{EngineHash, KvOp, StoredBlock, StoredBlocks};

/// The most one part may take when encoded, in bytes.
pub(crate) const MAX_PART_BYTES: usize = 256 << 10;
/// What a batch takes apart from its ops: target, numbers and their framing.
const BATCH_BYTES: usize = 512;
/// What an op takes apart from its hashes and texts.
const OP_BYTES: usize = 128;
/// What a hash takes apart from its own bytes, or an integer hash in all.
const HASH_BYTES: usize = 16;
/// What a block's content hash takes.
const BLOCK_HASH_BYTES: usize = 16;

/// Cuts `ops` into parts in order, at least one. Each is within the limit, unless a single block is not.
pub(crate) fn split(ops: Vec<KvOp>) -> Vec<Vec<KvOp>> {
    let mut parts = Parts {
        done: Vec::new(),
        open: Vec::new(),
        room: MAX_PART_BYTES - BATCH_BYTES,
    };
    for op in ops {
        parts.add(op);
    }
    if !parts.open.is_empty() || parts.done.is_empty() {
        parts.done.push(parts.open);
    }
    parts.done
}

struct Parts {
    done: Vec<Vec<KvOp>>,
    open: Vec<KvOp>,
    room: usize,
}

impl Parts {
    fn add(&mut self, op: KvOp) {
        match op {
            KvOp::Stored(stored) => self.add_stored(stored),
            KvOp::Removed {
                group,
                engine_hashes,
                tier,
            } => self.add_hashes(engine_hashes, |engine_hashes| KvOp::Removed {
                group,
                engine_hashes,
                tier,
            }),
            KvOp::Retiered {
                group,
                engine_hashes,
                from,
                to,
            } => self.add_hashes(engine_hashes, |engine_hashes| KvOp::Retiered {
                group,
                engine_hashes,
                from,
                to,
            }),
            op @ (KvOp::Cleared | KvOp::Reset { .. }) => self.push(op, OP_BYTES),
        }
    }

    /// A chain that is cut goes on as the child of its last block.
    fn add_stored(&mut self, stored: StoredBlocks) {
        let texts = |text: &Option<std::sync::Arc<str>>| text.as_ref().map_or(0, |it| it.len());
        let namespace = &stored.namespace;
        let fixed = OP_BYTES
            + namespace.model.as_str().len()
            + texts(&namespace.lora)
            + texts(&namespace.salt);
        let mut parent = stored.parent.clone();
        let mut blocks = stored.blocks.into_iter().peekable();
        while blocks.peek().is_some() {
            let mut bytes = fixed + parent.as_ref().map_or(0, hash_bytes);
            let taken = self.take(&mut blocks, &mut bytes, |block: &StoredBlock| {
                hash_bytes(&block.engine_hash) + BLOCK_HASH_BYTES
            });
            let last = taken.last().map(|block| block.engine_hash.clone());
            let piece = StoredBlocks {
                group: stored.group,
                parent: std::mem::replace(&mut parent, last),
                blocks: taken,
                tier: stored.tier,
                namespace: stored.namespace.clone(),
                session: stored.session,
            };
            self.push(KvOp::Stored(piece), bytes);
        }
    }

    fn add_hashes(&mut self, hashes: Vec<EngineHash>, op: impl Fn(Vec<EngineHash>) -> KvOp) {
        let mut hashes = hashes.into_iter().peekable();
        while hashes.peek().is_some() {
            let mut bytes = OP_BYTES;
            let taken = self.take(&mut hashes, &mut bytes, hash_bytes);
            self.push(op(taken), bytes);
        }
    }

    /// Takes as many items as there is room for, at least one, opening another part if there is none.
    fn take<T>(
        &mut self,
        items: &mut std::iter::Peekable<impl Iterator<Item = T>>,
        bytes: &mut usize,
        size: impl Fn(&T) -> usize,
    ) -> Vec<T> {
        if items
            .peek()
            .is_some_and(|first| self.room < *bytes + size(first))
        {
            self.close();
        }
        let mut taken = Vec::new();
        while let Some(next) =
            items.next_if(|next| taken.is_empty() || *bytes + size(next) <= self.room)
        {
            *bytes += size(&next);
            taken.push(next);
        }
        taken
    }

    fn push(&mut self, op: KvOp, bytes: usize) {
        if self.room < bytes {
            self.close();
        }
        self.room = self.room.saturating_sub(bytes);
        self.open.push(op);
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.push(std::mem::take(&mut self.open));
            self.room = MAX_PART_BYTES - BATCH_BYTES;
        }
    }
}

fn hash_bytes(hash: &EngineHash) -> usize {
    match hash {
        EngineHash::Int(_) => HASH_BYTES,
        EngineHash::Bytes(bytes) => HASH_BYTES + bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use contracts::Encoding;
    use domain::{
        BlockHash, BlockSize, DpRank, Epoch, EventSeq, KvBatch, Namespace, Target, Tier, Timestamp,
    };

    use super::*;

    fn encoded(ops: Vec<KvOp>) -> Bytes {
        let batch = KvBatch {
            target: Target {
                worker: "w".repeat(128).parse().unwrap(),
                epoch: Epoch::new(u64::MAX),
                dp_rank: DpRank::new(u32::MAX),
            },
            seq: EventSeq::new(u64::MAX),
            part: 0,
            parts: u32::MAX,
            engine_ts: Timestamp::from_micros(u64::MAX),
            ops,
        };
        batch.to_bytes()
    }

    fn stored(blocks: u64, engine_hash: impl Fn(u64) -> EngineHash) -> StoredBlocks {
        let block = |index| StoredBlock {
            engine_hash: engine_hash(index),
            block_hash: BlockHash::new(u64::MAX - index),
        };
        StoredBlocks {
            group: 0,
            parent: Some(engine_hash(u64::MAX)),
            blocks: (0..blocks).map(block).collect(),
            tier: Tier::Gpu,
            namespace: Namespace {
                model: "m".parse().unwrap(),
                lora: None,
                salt: Some("salt".into()),
                block_size: BlockSize::new(16).unwrap(),
            },
            session: None,
        }
    }

    fn check(ops: Vec<KvOp>) -> Vec<Vec<KvOp>> {
        let parts = split(ops);
        for part in &parts {
            assert!(encoded(part.clone()).len() <= MAX_PART_BYTES);
        }
        parts
    }

    #[test]
    fn a_long_chain_is_cut_into_parts_that_hang_together() {
        for engine_hash in [
            |index| EngineHash::Int(u64::MAX - index),
            |index: u64| EngineHash::Bytes([index.to_be_bytes(); 4].concat().into()),
        ] {
            let whole = stored(60_000, engine_hash);
            let parts = check(vec![KvOp::Stored(whole.clone()), KvOp::Cleared]);
            assert!(1 < parts.len());
            let mut parent = whole.parent.clone();
            let mut blocks = Vec::new();
            for op in parts.into_iter().flatten() {
                let KvOp::Stored(piece) = op else {
                    assert_eq!(op, KvOp::Cleared);
                    continue;
                };
                assert_eq!(piece.parent, parent);
                parent = piece.blocks.last().map(|it| it.engine_hash.clone());
                blocks.extend(piece.blocks);
            }
            assert_eq!(blocks, whole.blocks);
        }
    }

    #[test]
    fn many_removals_keep_their_order_over_all_parts() {
        let removed = |index| KvOp::Removed {
            group: 0,
            engine_hashes: vec![EngineHash::Int(index)],
            tier: Tier::Host,
        };
        let ops: Vec<KvOp> = (0..20_000).map(removed).collect();
        let parts = check(ops.clone());
        assert!(1 < parts.len());
        assert_eq!(parts.concat(), ops);
    }

    #[test]
    fn a_message_that_says_nothing_has_one_empty_part() {
        assert_eq!(split(Vec::new()), [Vec::new()]);
    }
}
