//! KV-cache events after their token ids have ended: what `kv-events` carries.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::{BlockHash, EngineHash, EventSeq, Namespace, Target, Tier, Timestamp};

/// One engine batch of one rank, or a part of it.
///
/// `(seq, part)` orders; an indexer's cursor moves to `seq` when all `parts` are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvBatch {
    /// Whose cache changed.
    pub target: Target,
    /// The publisher's number of the batch.
    pub seq: EventSeq,
    /// Which part this is, from 0.
    pub part: u32,
    /// How many parts the batch has, at least 1.
    pub parts: u32,
    /// When the engine says it published.
    pub engine_ts: Timestamp,
    /// What changed, in order.
    pub ops: Vec<KvOp>,
}

/// One change of one rank's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvOp {
    /// Blocks were filled.
    Stored(StoredBlocks),
    /// Blocks moved between tiers.
    Retiered {
        /// The engine's KV cache group.
        group: u32,
        /// Which blocks.
        engine_hashes: Vec<EngineHash>,
        /// Where they were.
        from: Tier,
        /// Where they are.
        to: Tier,
    },
    /// One copy of each block left a tier.
    Removed {
        /// The engine's KV cache group.
        group: u32,
        /// Which blocks.
        engine_hashes: Vec<EngineHash>,
        /// The tier they left.
        tier: Tier,
    },
    /// The rank holds nothing any more.
    Cleared,
    /// What was known of the rank is void; what follows is true but incomplete.
    Reset {
        /// Why.
        reason: ResetReason,
    },
}

/// A chain of blocks, each the child of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The engine's KV cache group.
    pub group: u32,
    /// The block that the first one extends; none at the root.
    pub parent: Option<EngineHash>,
    /// The blocks, in order, at least one.
    pub blocks: Vec<StoredBlock>,
    /// Where they lie.
    pub tier: Tier,
    /// Which index they belong to.
    pub namespace: Namespace,
    /// The session whose request stored them, where the engine says.
    pub session: Option<SessionTag>,
}

/// One block under its two names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// The engine's name for it.
    pub engine_hash: EngineHash,
    /// The hash of its content.
    pub block_hash: BlockHash,
}

/// A keyed hash of an engine's `session_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionTag(pub u64);

impl SessionTag {
    /// The xxh3-64 of the session's id, seeded with the xxh3-64 of the deployment's secret.
    pub fn of(session: &str, secret: &[u8]) -> Self {
        Self(xxh3_64_with_seed(session.as_bytes(), xxh3_64(secret)))
    }
}

/// Why a rank's state is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetReason {
    /// Events were lost and the engine no longer keeps them.
    ReplayGone,
    /// Events were lost and the engine offers no replay.
    NoReplay,
    /// Attached to an engine that had been serving for a while.
    AttachedLate,
}
