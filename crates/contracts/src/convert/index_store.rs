//! `store/v1/index.proto`.

use bus::{Generation, Offset};
use domain::{EngineHash, Epoch, EventSeq, KvOp, Namespace, SequenceHash, Target, WorkerId};
use prefix_index::{Claims, Copies, HeldBlock, RankSnapshot};

use super::{Wire, invalid, required};
use crate::DecodeError;
use crate::index_store::{Base, Fence, LogCursor, LogCursors, Segment, StoredRank};

/// The generated types, which find those of `rankway.v1` two modules up; they never leave this crate.
mod rankway {
    pub(crate) use crate::convert::wire as v1;

    pub(crate) mod store {
        pub(crate) mod v1 {
            #![expect(
                unreachable_pub,
                reason = "generated from proto/, which documents them"
            )]
            include!(concat!(env!("OUT_DIR"), "/rankway.store.v1.rs"));
        }
    }
}
use rankway::store::v1 as stored;

impl Wire for LogCursors {
    const WHAT: &'static str = "log cursors";
    type Message = stored::LogCursors;

    fn to_wire(&self) -> stored::LogCursors {
        stored::LogCursors {
            cursors: self.0.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: stored::LogCursors) -> Result<Self, DecodeError> {
        let cursors = message.cursors.into_iter().map(LogCursor::from_wire);
        cursors.collect::<Result<_, _>>().map(Self)
    }
}

impl Wire for LogCursor {
    const WHAT: &'static str = "log cursor";
    type Message = stored::LogCursor;

    fn to_wire(&self) -> stored::LogCursor {
        stored::LogCursor {
            partition: self.partition,
            generation: self.generation.0,
            offset: self.offset.0,
        }
    }

    fn from_wire(message: stored::LogCursor) -> Result<Self, DecodeError> {
        Ok(Self {
            partition: message.partition,
            generation: Generation(message.generation),
            offset: Offset(message.offset),
        })
    }
}

impl Wire for Fence {
    const WHAT: &'static str = "fence";
    type Message = stored::Fence;

    fn to_wire(&self) -> stored::Fence {
        stored::Fence {
            worker: self.worker.to_string(),
            epoch: self.epoch.get(),
        }
    }

    fn from_wire(message: stored::Fence) -> Result<Self, DecodeError> {
        let worker = WorkerId::new(&message.worker);
        Ok(Self {
            worker: worker.map_err(|why| invalid::<Self>("worker", why))?,
            epoch: Epoch::new(message.epoch),
        })
    }
}

impl Wire for StoredRank {
    const WHAT: &'static str = "stored rank";
    type Message = stored::Rank;

    fn to_wire(&self) -> stored::Rank {
        stored::Rank {
            target: Some(self.target.to_wire()),
            cursor: self.cursor.map(EventSeq::get),
            awaiting: self.awaiting.map(EventSeq::get),
            claims: Some(self.claims.to_wire()),
            next_segment: self.next_segment,
        }
    }

    fn from_wire(message: stored::Rank) -> Result<Self, DecodeError> {
        Ok(Self {
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            cursor: message.cursor.map(EventSeq::new),
            awaiting: message.awaiting.map(EventSeq::new),
            claims: Claims::from_wire(required::<Self, _>("claims", message.claims)?)?,
            next_segment: message.next_segment,
        })
    }
}

impl Wire for Claims {
    const WHAT: &'static str = "claims";
    type Message = stored::Claims;

    fn to_wire(&self) -> stored::Claims {
        use stored::claims;
        let claims = match *self {
            Self::Complete => claims::Claims::Complete(claims::Complete {}),
            Self::Partial { announced } => claims::Claims::Partial(claims::Partial { announced }),
        };
        stored::Claims {
            claims: Some(claims),
        }
    }

    fn from_wire(message: stored::Claims) -> Result<Self, DecodeError> {
        use stored::claims;
        Ok(match required::<Self, _>("claims", message.claims)? {
            claims::Claims::Complete(claims::Complete {}) => Self::Complete,
            claims::Claims::Partial(claims::Partial { announced }) => Self::Partial { announced },
        })
    }
}

impl Wire for Base {
    const WHAT: &'static str = "base";
    type Message = stored::Base;

    fn to_wire(&self) -> stored::Base {
        stored::Base {
            generation: self.generation,
            chunks: self.chunks,
            first_segment: self.first_segment,
        }
    }

    fn from_wire(message: stored::Base) -> Result<Self, DecodeError> {
        Ok(Self {
            generation: message.generation,
            chunks: message.chunks,
            first_segment: message.first_segment,
        })
    }
}

impl Wire for RankSnapshot {
    const WHAT: &'static str = "base chunk";
    type Message = stored::Chunk;

    fn to_wire(&self) -> stored::Chunk {
        stored::Chunk {
            claims: Some(self.claims.to_wire()),
            namespaces: self.namespaces.iter().map(Wire::to_wire).collect(),
            blocks: self.blocks.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: stored::Chunk) -> Result<Self, DecodeError> {
        let namespaces = message.namespaces.into_iter().map(Namespace::from_wire);
        let blocks = message.blocks.into_iter().map(HeldBlock::from_wire);
        Ok(Self {
            claims: Claims::from_wire(required::<Self, _>("claims", message.claims)?)?,
            namespaces: namespaces.collect::<Result<_, _>>()?,
            blocks: blocks.collect::<Result<_, _>>()?,
        })
    }
}

impl Wire for HeldBlock {
    const WHAT: &'static str = "held block";
    type Message = stored::HeldBlock;

    fn to_wire(&self) -> stored::HeldBlock {
        stored::HeldBlock {
            namespace: self.namespace,
            group: self.group,
            engine_hash: Some(self.engine_hash.to_wire()),
            sequence_hash: self.sequence.get(),
            gpu: self.copies.gpu,
            host: self.copies.host,
            disk: self.copies.disk,
        }
    }

    fn from_wire(message: stored::HeldBlock) -> Result<Self, DecodeError> {
        let engine_hash = required::<Self, _>("engine_hash", message.engine_hash)?;
        Ok(Self {
            namespace: message.namespace,
            group: message.group,
            engine_hash: EngineHash::from_wire(engine_hash)?,
            sequence: SequenceHash::new(message.sequence_hash),
            copies: Copies {
                gpu: message.gpu,
                host: message.host,
                disk: message.disk,
            },
        })
    }
}

impl Wire for Segment {
    const WHAT: &'static str = "segment";
    type Message = stored::Segment;

    fn to_wire(&self) -> stored::Segment {
        stored::Segment {
            number: self.number,
            ops: self.ops.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: stored::Segment) -> Result<Self, DecodeError> {
        let ops = message.ops.into_iter().map(KvOp::from_wire);
        Ok(Self {
            number: message.number,
            ops: ops.collect::<Result<_, _>>()?,
        })
    }
}
