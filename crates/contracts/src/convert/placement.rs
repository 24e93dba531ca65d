//! What a choice is made from and what it comes to, of `records.proto`. Types are taken apart field by field, so that one
//! that comes to have another does not compile until the field is recorded.

use std::borrow::Cow;

use domain::{BlockSize, DpRank, Epoch, Target, TargetState, Timestamp, Tokens, WorkerId};
use placement::{
    Barred, Candidate, Gauge, Held, Hint, Obligation, Place, Request, Snapshot, Stuck, Tally,
};
use prost::Message as _;
use xxhash_rust::xxh3::xxh3_64;

use super::{Wire, invalid, read_enum, required, wire, wire_enum};
use crate::{DecodeError, Digest, RecordedChoice, RecordedScore};

wire_enum!(Barred, Barred, {
    Tried => Tried,
    NoAdapter => NoAdapter,
    FailedLately => FailedLately,
});

impl Digest {
    /// Of a whole snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        Self {
            candidates: u32::try_from(snapshot.candidates.len()).unwrap_or(u32::MAX),
            snapshot: xxh3_64(&snapshot.to_wire().encode_to_vec()),
        }
    }
}

impl Wire for Place {
    const WHAT: &'static str = "place";
    type Message = wire::Place;

    fn to_wire(&self) -> wire::Place {
        let (worker, epoch, dp_rank) = match self {
            Self::Target(target) => (&target.worker, target.epoch, Some(target.dp_rank)),
            Self::Worker { worker, epoch } => (worker, *epoch, None),
        };
        wire::Place {
            worker: worker.to_string(),
            epoch: epoch.get(),
            dp_rank: dp_rank.map(DpRank::get),
        }
    }

    fn from_wire(message: wire::Place) -> Result<Self, DecodeError> {
        let worker = WorkerId::new(&message.worker);
        let worker = worker.map_err(|why| invalid::<Self>("worker", why))?;
        let epoch = Epoch::new(message.epoch);
        Ok(match message.dp_rank {
            Some(dp_rank) => Self::Target(Target {
                worker,
                epoch,
                dp_rank: DpRank::new(dp_rank),
            }),
            None => Self::Worker { worker, epoch },
        })
    }
}

impl Wire for Request {
    const WHAT: &'static str = "placement request";
    type Message = wire::Asked;

    fn to_wire(&self) -> wire::Asked {
        use wire::hint::Hint as Sent;
        let Self {
            isl,
            conversation,
            hint,
            stuck,
        } = self;
        let hint = hint.as_ref().map(|it| match it {
            Hint::Near(target) => Sent::Near(target.to_wire()),
            Hint::Bucket(key) => Sent::Bucket(*key),
            Hint::Home(key) => Sent::Home(*key),
        });
        wire::Asked {
            isl: isl.get(),
            conversation: *conversation,
            hint: hint.map(|it| wire::Hint { hint: Some(it) }),
            stuck: stuck.as_ref().map(Stuck::to_wire),
        }
    }

    fn from_wire(message: wire::Asked) -> Result<Self, DecodeError> {
        use wire::hint::Hint as Sent;
        let hint = match message.hint {
            None => None,
            Some(it) => Some(match required::<Self, _>("hint", it.hint)? {
                Sent::Near(target) => Hint::Near(Target::from_wire(target)?),
                Sent::Bucket(key) => Hint::Bucket(key),
                Sent::Home(key) => Hint::Home(key),
            }),
        };
        Ok(Self {
            isl: Tokens::new(message.isl),
            conversation: message.conversation,
            hint,
            stuck: message.stuck.map(Stuck::from_wire).transpose()?,
        })
    }
}

impl Wire for Stuck {
    const WHAT: &'static str = "stuck conversation";
    type Message = wire::Stuck;

    fn to_wire(&self) -> wire::Stuck {
        let Self { target, turns, isl } = self;
        wire::Stuck {
            target: Some(target.to_wire()),
            turns: *turns,
            isl: isl.get(),
        }
    }

    fn from_wire(message: wire::Stuck) -> Result<Self, DecodeError> {
        Ok(Self {
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            turns: message.turns,
            isl: Tokens::new(message.isl),
        })
    }
}

impl Wire for Gauge {
    const WHAT: &'static str = "gauge";
    type Message = wire::Gauge;

    fn to_wire(&self) -> wire::Gauge {
        let Self {
            running,
            waiting,
            kv_used,
        } = self;
        wire::Gauge {
            running: *running,
            waiting: *waiting,
            kv_used: Some(*kv_used),
        }
    }

    fn from_wire(message: wire::Gauge) -> Result<Self, DecodeError> {
        Ok(Self {
            running: message.running,
            waiting: message.waiting,
            kv_used: required::<Self, _>("kv_used", message.kv_used)?,
        })
    }
}

impl Wire for Tally {
    const WHAT: &'static str = "tally";
    type Message = wire::Tally;

    fn to_wire(&self) -> wire::Tally {
        let Self {
            conversations,
            active_blocks,
            joined_blocks,
            assigned,
            cold_at,
        } = self;
        wire::Tally {
            conversations: *conversations,
            active_blocks: *active_blocks,
            joined_blocks: *joined_blocks,
            assigned: Some(*assigned),
            cold_at: cold_at.map(Timestamp::as_micros),
        }
    }

    fn from_wire(message: wire::Tally) -> Result<Self, DecodeError> {
        Ok(Self {
            conversations: message.conversations,
            active_blocks: message.active_blocks,
            joined_blocks: message.joined_blocks,
            assigned: required::<Self, _>("assigned", message.assigned)?,
            cold_at: message.cold_at.map(Timestamp::from_micros),
        })
    }
}

impl Wire for Snapshot {
    const WHAT: &'static str = "snapshot";
    type Message = wire::Snapshot;

    fn to_wire(&self) -> wire::Snapshot {
        let Self {
            candidates,
            turn,
            reuse,
        } = self;
        wire::Snapshot {
            candidates: candidates.iter().map(Candidate::to_wire).collect(),
            turn: *turn,
            reuse: Some(*reuse),
        }
    }

    fn from_wire(message: wire::Snapshot) -> Result<Self, DecodeError> {
        let candidates = message.candidates.into_iter().map(Candidate::from_wire);
        Ok(Self {
            candidates: candidates.collect::<Result<_, _>>()?,
            turn: message.turn,
            reuse: required::<Self, _>("reuse", message.reuse)?,
        })
    }
}

impl Wire for Candidate {
    const WHAT: &'static str = "candidate";
    type Message = wire::Candidate;

    fn to_wire(&self) -> wire::Candidate {
        let Self {
            target,
            state,
            barred,
            block_size,
            held: Held { gpu, host, disk },
            presumed,
            index_known,
            has_events,
            in_flight,
            pending,
            foreign,
            active,
            gauge,
            tally,
            resident,
            capacity,
            overdue,
            utilisation,
            obligation:
                Obligation {
                    tokens: obliged,
                    conversations,
                },
            prefill_rate,
            decode_step,
        } = self;
        let barred = barred.map_or(wire::Barred::Unspecified, Into::into);
        // Nothing counted is not written: under most policies it is so for every candidate.
        let tally = Some(tally).filter(|it| **it != Tally::default());
        wire::Candidate {
            target: Some(target.to_wire()),
            state: wire::TargetState::from(*state).into(),
            barred: barred.into(),
            block_size: block_size.get(),
            held_gpu: gpu.get(),
            held_host: host.get(),
            held_disk: disk.get(),
            presumed: presumed.get(),
            index_known: *index_known,
            has_events: *has_events,
            in_flight: in_flight.get(),
            pending: pending.get(),
            foreign: foreign.get(),
            active: *active,
            resident: resident.get(),
            capacity: capacity.map(Tokens::get),
            utilisation: Some(*utilisation),
            conversations: *conversations,
            obliged: Some(*obliged),
            prefill_rate: Some(*prefill_rate),
            decode_step: Some(*decode_step),
            gauge: gauge.as_ref().map(Gauge::to_wire),
            tally: tally.map(Tally::to_wire),
            overdue: Some(*overdue),
        }
    }

    fn from_wire(message: wire::Candidate) -> Result<Self, DecodeError> {
        let block_size = BlockSize::new(message.block_size);
        let barred = match message.barred {
            0 => None,
            number => Some(read_enum::<Self, wire::Barred, _>("barred", number)?),
        };
        Ok(Self {
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            state: read_enum::<Self, wire::TargetState, TargetState>("state", message.state)?,
            barred,
            block_size: block_size.map_err(|why| invalid::<Self>("block_size", why))?,
            held: Held {
                gpu: Tokens::new(message.held_gpu),
                host: Tokens::new(message.held_host),
                disk: Tokens::new(message.held_disk),
            },
            presumed: Tokens::new(message.presumed),
            index_known: message.index_known,
            has_events: message.has_events,
            in_flight: Tokens::new(message.in_flight),
            pending: Tokens::new(message.pending),
            foreign: Tokens::new(message.foreign),
            active: message.active,
            gauge: message.gauge.map(Gauge::from_wire).transpose()?,
            tally: message
                .tally
                .map_or(Ok(Tally::default()), Tally::from_wire)?,
            resident: Tokens::new(message.resident),
            capacity: message.capacity.map(Tokens::new),
            overdue: required::<Self, _>("overdue", message.overdue)?,
            utilisation: required::<Self, _>("utilisation", message.utilisation)?,
            obligation: Obligation {
                tokens: required::<Self, _>("obliged", message.obliged)?,
                conversations: message.conversations,
            },
            prefill_rate: required::<Self, _>("prefill_rate", message.prefill_rate)?,
            decode_step: required::<Self, _>("decode_step", message.decode_step)?,
        })
    }
}

impl Wire for RecordedChoice {
    const WHAT: &'static str = "choice";
    type Message = wire::Choice;

    fn to_wire(&self) -> wire::Choice {
        let Self {
            place,
            reason,
            scores,
        } = self;
        wire::Choice {
            place: Some(place.to_wire()),
            reason: reason.clone(),
            scores: scores.iter().map(RecordedScore::to_wire).collect(),
        }
    }

    fn from_wire(message: wire::Choice) -> Result<Self, DecodeError> {
        let scores = message.scores.into_iter().map(RecordedScore::from_wire);
        Ok(Self {
            place: Place::from_wire(required::<Self, _>("place", message.place)?)?,
            reason: message.reason,
            scores: scores.collect::<Result<_, _>>()?,
        })
    }
}

impl Wire for RecordedScore {
    const WHAT: &'static str = "score";
    type Message = wire::Score;

    fn to_wire(&self) -> wire::Score {
        let Self {
            target,
            cost,
            credited,
            uncached,
            terms,
            weighed,
        } = self;
        let term = |(name, seconds): &(Cow<'static, str>, f64)| wire::Term {
            name: name.to_string(),
            seconds: Some(*seconds),
        };
        wire::Score {
            target: Some(target.to_wire()),
            cost: Some(*cost),
            credited: credited.get(),
            uncached: uncached.get(),
            terms: terms.iter().map(term).collect(),
            weighed: *weighed,
        }
    }

    fn from_wire(message: wire::Score) -> Result<Self, DecodeError> {
        let term = |it: wire::Term| {
            let seconds = required::<Self, _>("seconds", it.seconds)?;
            Ok((Cow::Owned(it.name), seconds))
        };
        let terms = message.terms.into_iter().map(term);
        Ok(Self {
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            cost: required::<Self, _>("cost", message.cost)?,
            credited: Tokens::new(message.credited),
            uncached: Tokens::new(message.uncached),
            terms: terms.collect::<Result<_, DecodeError>>()?,
            weighed: message.weighed,
        })
    }
}
