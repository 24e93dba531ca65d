//! `store/v1/index.proto`.

use bus::{Generation, Offset};
use domain::{Epoch, EventSeq, KvOp, Target, WorkerId};
use prefix_index::Claims;

use super::{Wire, invalid, required};
use crate::DecodeError;
use crate::index_store::{Base, Commit, Fence, Frame, LogCursor, LogCursors, Segment, StoredRank};
use crate::wire::store::v1 as stored;

mod chunk;

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

impl Wire for Commit {
    const WHAT: &'static str = "commit";
    type Message = stored::Commit;

    fn to_wire(&self) -> stored::Commit {
        stored::Commit {
            cursors: Some(self.cursors.to_wire()),
            first_part: self.first_part,
            last_part: self.last_part,
            bytes: self.bytes,
            first_frame: self.first_frame,
            next_frame: self.next_frame,
            bases: self.bases,
            gone: self.gone.clone(),
        }
    }

    fn from_wire(message: stored::Commit) -> Result<Self, DecodeError> {
        Ok(Self {
            cursors: LogCursors::from_wire(required::<Self, _>("cursors", message.cursors)?)?,
            first_part: message.first_part,
            last_part: message.last_part,
            bytes: message.bytes,
            first_frame: message.first_frame,
            next_frame: message.next_frame,
            bases: message.bases,
            gone: message.gone,
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
        }
    }

    fn from_wire(message: stored::Rank) -> Result<Self, DecodeError> {
        Ok(Self {
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            cursor: message.cursor.map(EventSeq::new),
            awaiting: message.awaiting.map(EventSeq::new),
            claims: Claims::from_wire(required::<Self, _>("claims", message.claims)?)?,
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
            rank: Some(self.rank.to_wire()),
            first_frame: self.first_frame,
            bytes: self.bytes,
        }
    }

    fn from_wire(message: stored::Base) -> Result<Self, DecodeError> {
        Ok(Self {
            generation: message.generation,
            rank: StoredRank::from_wire(required::<Self, _>("rank", message.rank)?)?,
            first_frame: message.first_frame,
            bytes: message.bytes,
        })
    }
}

impl Wire for Frame {
    const WHAT: &'static str = "frame";
    type Message = stored::Frame;

    fn to_wire(&self) -> stored::Frame {
        stored::Frame {
            number: self.number,
            segments: self.segments.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: stored::Frame) -> Result<Self, DecodeError> {
        let segments = message.segments.into_iter().map(Segment::from_wire);
        Ok(Self {
            number: message.number,
            segments: segments.collect::<Result<_, _>>()?,
        })
    }
}

impl Wire for Segment {
    const WHAT: &'static str = "segment";
    type Message = stored::Segment;

    fn to_wire(&self) -> stored::Segment {
        stored::Segment {
            number: self.number,
            rank: Some(self.rank.to_wire()),
            ops: self.ops.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: stored::Segment) -> Result<Self, DecodeError> {
        let ops = message.ops.into_iter().map(KvOp::from_wire);
        Ok(Self {
            number: message.number,
            rank: StoredRank::from_wire(required::<Self, _>("rank", message.rank)?)?,
            ops: ops.collect::<Result<_, _>>()?,
        })
    }
}
