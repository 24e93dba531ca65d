//! Decisions of `records.proto`.

use std::time::Duration;

use domain::{DecisionId, Endpoint, InstanceId, ModelName, Target, Timestamp, Tokens};
use placement::{Place, Request, Snapshot};

use super::{Wire, invalid, read_enum, required, wire};
use crate::{Cacheable, DecisionRecord, DecodeError, Digest, RecordedChoice};

impl Wire for DecisionRecord {
    const WHAT: &'static str = "decision";
    type Message = wire::Decision;

    fn to_wire(&self) -> wire::Decision {
        let Self {
            id,
            router,
            at,
            model,
            endpoint,
            queued,
            retry_of,
            place,
            wanted,
            reason,
            binding,
            degraded,
            free,
            uncached,
            cacheable,
            index_age,
            policy,
            seed,
            asked,
            snapshot,
            choice,
            digest,
        } = self;
        wire::Decision {
            id: id.to_string(),
            router: router.to_string(),
            at: at.as_micros(),
            model: model.to_string(),
            endpoint: wire::Endpoint::from(*endpoint).into(),
            queued: nanoseconds(*queued),
            retry_of: retry_of.map(|it| it.to_string()),
            place: Some(place.to_wire()),
            wanted: wanted.as_ref().map(Target::to_wire),
            reason: reason.clone(),
            binding: binding.clone(),
            degraded: degraded.clone(),
            free: *free,
            uncached: uncached.map(Tokens::get),
            levels: cacheable.map(levels_to_wire),
            index_age: index_age.map(nanoseconds),
            policy: policy.to_string(),
            seed: *seed,
            asked: Some(asked.to_wire()),
            snapshot: Some(snapshot.to_wire()),
            choice: choice.as_ref().map(RecordedChoice::to_wire),
            digest: digest.map(|it| wire::Digest {
                candidates: it.candidates,
                snapshot: it.snapshot,
            }),
        }
    }

    fn from_wire(message: wire::Decision) -> Result<Self, DecodeError> {
        let router = InstanceId::new(&message.router);
        let model = ModelName::new(&message.model);
        let policy = message.policy.parse();
        let retry_of = message.retry_of.as_deref().map(id::<Self>);
        let digest = message.digest.map(|it| Digest {
            candidates: it.candidates,
            snapshot: it.snapshot,
        });
        Ok(Self {
            id: id::<Self>(&message.id)?,
            router: router.map_err(|why| invalid::<Self>("router", why))?,
            at: Timestamp::from_micros(message.at),
            model: model.map_err(|why| invalid::<Self>("model", why))?,
            endpoint: read_enum::<Self, wire::Endpoint, Endpoint>("endpoint", message.endpoint)?,
            queued: Duration::from_nanos(message.queued),
            retry_of: retry_of.transpose()?,
            place: Place::from_wire(required::<Self, _>("place", message.place)?)?,
            wanted: message.wanted.map(Target::from_wire).transpose()?,
            reason: message.reason,
            binding: message.binding,
            degraded: message.degraded,
            free: message.free,
            uncached: message.uncached.map(Tokens::new),
            cacheable: message.levels.map(levels_from_wire),
            index_age: message.index_age.map(Duration::from_nanos),
            policy: policy.map_err(|why| invalid::<Self>("policy", why))?,
            seed: message.seed,
            asked: Request::from_wire(required::<Self, _>("asked", message.asked)?)?,
            snapshot: Snapshot::from_wire(required::<Self, _>("snapshot", message.snapshot)?)?,
            choice: message.choice.map(RecordedChoice::from_wire).transpose()?,
            digest,
        })
    }
}

pub(super) fn id<T: Wire>(text: &str) -> Result<DecisionId, DecodeError> {
    text.parse().map_err(|why| invalid::<T>("id", why))
}

/// Up to 584 years.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn levels_to_wire(levels: Cacheable) -> wire::Levels {
    let Cacheable {
        ceiling,
        stored,
        best,
        ready,
    } = levels;
    wire::Levels {
        ceiling: ceiling.get(),
        stored: stored.get(),
        best: best.get(),
        ready: ready.get(),
    }
}

fn levels_from_wire(message: wire::Levels) -> Cacheable {
    Cacheable {
        ceiling: Tokens::new(message.ceiling),
        stored: Tokens::new(message.stored),
        best: Tokens::new(message.best),
        ready: Tokens::new(message.ready),
    }
}
