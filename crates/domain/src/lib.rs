//! The words of the domain: who serves, where, which blocks, how much, when. No I/O, no async, no clock.

mod block;
mod drain;
mod endpoint;
mod fleet;
mod folding;
mod ids;
mod kv;
mod load;
mod overlap;
mod reservation;
mod time;
mod tokens;
mod usage;

pub use block::{
    BlockHash, BlockSize, EngineHash, HashSeed, InvalidBlockSize, Namespace, SequenceHash, Tier,
    block_hashes, prefix_hashes, sequence_hashes,
};
pub use drain::Drain;
pub use endpoint::{ByEndpoint, Endpoint};
pub use fleet::{
    Capability, Distrust, EngineKind, Fingerprint, FirstRank, HeaderSpace, Incarnation,
    InvalidTarget, KvEndpoints, MAX_RANKS, RankControl, RankEndpoint, ServiceInstance, ServiceKind,
    Share, Target, TargetState, Worker,
};
pub use folding::{Folder, Folding, fold};
pub use ids::{
    ConversationId, DecisionId, DpRank, Epoch, EventSeq, InstanceId, InvalidId, ModelName,
    TenantId, WorkerId,
};
pub use kv::{KvBatch, KvOp, ResetReason, SessionTag, StoredBlock, StoredBlocks};
pub use load::RankLoad;
pub use overlap::{Depths, OverlapGroup};
pub use reservation::ReservationChange;
pub use time::Timestamp;
pub use tokens::Tokens;
pub use usage::Usage;
