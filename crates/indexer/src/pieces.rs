//! Cutting large operations, so that no reader waits for a whole one.

use domain::{EngineHash, KvOp, StoredBlocks};

/// The most blocks that are applied under one lock: about 0.1 ms in a release build.
const PIECE_BLOCKS: usize = 512;

/// `op` as operations of at most [`PIECE_BLOCKS`] blocks. What is stored are the pieces, so that reading
/// them back does the same again.
pub(crate) fn pieces(op: KvOp) -> Vec<KvOp> {
    match op {
        KvOp::Stored(stored) if PIECE_BLOCKS < stored.blocks.len() => stored_pieces(&stored),
        KvOp::Removed {
            group,
            engine_hashes,
            tier,
        } => cut(engine_hashes, |engine_hashes| KvOp::Removed {
            group,
            engine_hashes,
            tier,
        }),
        KvOp::Retiered {
            group,
            engine_hashes,
            from,
            to,
        } => cut(engine_hashes, |engine_hashes| KvOp::Retiered {
            group,
            engine_hashes,
            from,
            to,
        }),
        KvOp::Stored(_) | KvOp::Cleared | KvOp::Reset { .. } => vec![op],
    }
}

/// Each piece extends the last block of the one before.
fn stored_pieces(stored: &StoredBlocks) -> Vec<KvOp> {
    let mut parent = stored.parent.clone();
    let mut pieces = Vec::new();
    for blocks in stored.blocks.chunks(PIECE_BLOCKS) {
        let last = blocks.last().map(|it| it.engine_hash.clone());
        pieces.push(KvOp::Stored(StoredBlocks {
            parent: std::mem::replace(&mut parent, last),
            blocks: blocks.to_vec(),
            namespace: stored.namespace.clone(),
            ..*stored
        }));
    }
    pieces
}

fn cut(engine_hashes: Vec<EngineHash>, op: impl Fn(Vec<EngineHash>) -> KvOp) -> Vec<KvOp> {
    if engine_hashes.len() <= PIECE_BLOCKS {
        return vec![op(engine_hashes)];
    }
    let pieces = engine_hashes.chunks(PIECE_BLOCKS);
    pieces.map(|some| op(some.to_vec())).collect()
}
