//! `kv.proto`.

use std::sync::Arc;

use bytes::Bytes;
use domain::{
    BlockHash, BlockSize, DpRank, EngineHash, Epoch, EventSeq, KvBatch, KvOp, Namespace,
    ResetReason, SessionTag, StoredBlock, StoredBlocks, Target, Tier, Timestamp, WorkerId,
};

use super::{Wire, invalid, read_enum, required, wire, wire_enum};
use crate::DecodeError;

wire_enum!(Tier, Tier, { Gpu => Gpu, Host => Host, Disk => Disk });
wire_enum!(ResetReason, ResetReason, {
    ReplayGone => ReplayGone,
    NoReplay => NoReplay,
    AttachedLate => AttachedLate,
});

impl Wire for Target {
    const WHAT: &'static str = "target";
    type Message = wire::Target;

    fn to_wire(&self) -> wire::Target {
        wire::Target {
            worker: self.worker.to_string(),
            epoch: self.epoch.get(),
            dp_rank: self.dp_rank.get(),
        }
    }

    fn from_wire(message: wire::Target) -> Result<Self, DecodeError> {
        let worker = WorkerId::new(&message.worker);
        Ok(Self {
            worker: worker.map_err(|why| invalid::<Self>("worker", why))?,
            epoch: Epoch::new(message.epoch),
            dp_rank: DpRank::new(message.dp_rank),
        })
    }
}

impl Wire for Namespace {
    const WHAT: &'static str = "namespace";
    type Message = wire::Namespace;

    fn to_wire(&self) -> wire::Namespace {
        wire::Namespace {
            model: self.model.to_string(),
            lora: self.lora.as_deref().map(str::to_owned),
            salt: self.salt.as_deref().map(str::to_owned),
            block_size: self.block_size.get(),
        }
    }

    fn from_wire(message: wire::Namespace) -> Result<Self, DecodeError> {
        let model = message.model.parse();
        let block_size = BlockSize::new(message.block_size);
        Ok(Self {
            model: model.map_err(|why| invalid::<Self>("model", why))?,
            lora: message.lora.map(Arc::from),
            salt: message.salt.map(Arc::from),
            block_size: block_size.map_err(|why| invalid::<Self>("block_size", why))?,
        })
    }
}

impl Wire for KvBatch {
    const WHAT: &'static str = "kv batch";
    type Message = wire::KvBatch;

    fn to_wire(&self) -> wire::KvBatch {
        wire::KvBatch {
            target: Some(self.target.to_wire()),
            seq: self.seq.get(),
            part: self.part,
            parts: self.parts,
            engine_ts: self.engine_ts.as_micros(),
            ops: self.ops.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: wire::KvBatch) -> Result<Self, DecodeError> {
        if message.part >= message.parts {
            let why = format!("is {} of {}", message.part, message.parts);
            return Err(invalid::<Self>("part", why));
        }
        let ops: Result<Vec<KvOp>, DecodeError> =
            message.ops.into_iter().map(KvOp::from_wire).collect();
        Ok(Self {
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            seq: EventSeq::new(message.seq),
            part: message.part,
            parts: message.parts,
            engine_ts: Timestamp::from_micros(message.engine_ts),
            ops: ops?,
        })
    }
}

impl Wire for KvOp {
    const WHAT: &'static str = "kv op";
    type Message = wire::KvOp;

    fn to_wire(&self) -> wire::KvOp {
        use wire::kv_op::Op;
        let op = match self {
            Self::Stored(stored) => Op::Stored(stored.to_wire()),
            Self::Retiered {
                group,
                engine_hashes,
                from,
                to,
            } => Op::Retiered(wire::Retiered {
                group: *group,
                engine_hashes: Some(hashes_to_wire(engine_hashes)),
                from: wire::Tier::from(*from).into(),
                to: wire::Tier::from(*to).into(),
            }),
            Self::Removed {
                group,
                engine_hashes,
                tier,
            } => Op::Removed(wire::Removed {
                group: *group,
                engine_hashes: Some(hashes_to_wire(engine_hashes)),
                tier: wire::Tier::from(*tier).into(),
            }),
            Self::Cleared => Op::Cleared(wire::Cleared {}),
            Self::Reset { reason } => Op::Reset(wire::Reset {
                reason: wire::ResetReason::from(*reason).into(),
            }),
        };
        wire::KvOp { op: Some(op) }
    }

    fn from_wire(message: wire::KvOp) -> Result<Self, DecodeError> {
        use wire::kv_op::Op;
        Ok(match required::<Self, _>("op", message.op)? {
            Op::Stored(stored) => Self::Stored(StoredBlocks::from_wire(stored)?),
            Op::Retiered(it) => Self::Retiered {
                group: it.group,
                engine_hashes: hashes_from_wire(it.engine_hashes)?,
                from: read_enum::<Self, wire::Tier, _>("from", it.from)?,
                to: read_enum::<Self, wire::Tier, _>("to", it.to)?,
            },
            Op::Removed(it) => Self::Removed {
                group: it.group,
                engine_hashes: hashes_from_wire(it.engine_hashes)?,
                tier: read_enum::<Self, wire::Tier, _>("tier", it.tier)?,
            },
            Op::Cleared(wire::Cleared {}) => Self::Cleared,
            Op::Reset(it) => Self::Reset {
                reason: read_enum::<Self, wire::ResetReason, _>("reason", it.reason)?,
            },
        })
    }
}

impl Wire for StoredBlocks {
    const WHAT: &'static str = "stored blocks";
    type Message = wire::Stored;

    fn to_wire(&self) -> wire::Stored {
        let engine_hashes: Vec<EngineHash> = self
            .blocks
            .iter()
            .map(|it| it.engine_hash.clone())
            .collect();
        wire::Stored {
            group: self.group,
            parent: self.parent.as_ref().map(Wire::to_wire),
            engine_hashes: Some(hashes_to_wire(&engine_hashes)),
            block_hashes: self.blocks.iter().map(|it| it.block_hash.get()).collect(),
            tier: wire::Tier::from(self.tier).into(),
            namespace: Some(self.namespace.to_wire()),
            session_tag: self.session.map(|it| it.0),
        }
    }

    fn from_wire(message: wire::Stored) -> Result<Self, DecodeError> {
        let engine_hashes = hashes_from_wire(message.engine_hashes)?;
        if engine_hashes.len() != message.block_hashes.len() {
            let why = format!(
                "has {} entries for {} engine hashes",
                message.block_hashes.len(),
                engine_hashes.len()
            );
            return Err(invalid::<Self>("block_hashes", why));
        }
        let blocks = engine_hashes
            .into_iter()
            .zip(message.block_hashes)
            .map(|(engine_hash, block_hash)| StoredBlock {
                engine_hash,
                block_hash: BlockHash::new(block_hash),
            })
            .collect();
        let namespace = required::<Self, _>("namespace", message.namespace)?;
        Ok(Self {
            group: message.group,
            parent: message.parent.map(EngineHash::from_wire).transpose()?,
            blocks,
            tier: read_enum::<Self, wire::Tier, _>("tier", message.tier)?,
            namespace: Namespace::from_wire(namespace)?,
            session: message.session_tag.map(SessionTag),
        })
    }
}

impl Wire for EngineHash {
    const WHAT: &'static str = "engine hash";
    type Message = wire::EngineHash;

    fn to_wire(&self) -> wire::EngineHash {
        use wire::engine_hash::Hash;
        let hash = match self {
            Self::Int(value) => Hash::Int(*value),
            Self::Bytes(bytes) => Hash::Digest(Bytes::copy_from_slice(bytes)),
        };
        wire::EngineHash { hash: Some(hash) }
    }

    fn from_wire(message: wire::EngineHash) -> Result<Self, DecodeError> {
        use wire::engine_hash::Hash;
        Ok(match required::<Self, _>("hash", message.hash)? {
            Hash::Int(value) => Self::Int(value),
            Hash::Digest(bytes) => Self::Bytes(Arc::from(&bytes[..])),
        })
    }
}

/// Packs hashes of one kind; of mixed kinds, which no engine sends, integers become their bytes.
fn hashes_to_wire(hashes: &[EngineHash]) -> wire::EngineHashes {
    let mut packed = wire::EngineHashes::default();
    let all_ints = hashes.iter().all(|it| matches!(it, EngineHash::Int(_)));
    for hash in hashes {
        match hash {
            EngineHash::Int(value) if all_ints => packed.ints.push(*value),
            EngineHash::Int(value) => {
                let bytes = value.to_be_bytes();
                packed.digests.push(Bytes::copy_from_slice(&bytes));
            }
            EngineHash::Bytes(bytes) => packed.digests.push(Bytes::copy_from_slice(bytes)),
        }
    }
    packed
}

fn hashes_from_wire(packed: Option<wire::EngineHashes>) -> Result<Vec<EngineHash>, DecodeError> {
    let packed = packed.unwrap_or_default();
    if !packed.ints.is_empty() && !packed.digests.is_empty() {
        return Err(invalid::<KvOp>(
            "engine_hashes",
            "mixes integers and digests",
        ));
    }
    let ints = packed.ints.into_iter().map(EngineHash::Int);
    let digests = packed.digests.into_iter();
    Ok(ints
        .chain(digests.map(|bytes| EngineHash::Bytes(Arc::from(&bytes[..]))))
        .collect())
}
