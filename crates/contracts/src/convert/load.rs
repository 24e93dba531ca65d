//! Gauges and reservations of `fleet.proto`.

use bytes::Bytes;
use domain::{
    DecisionId, DpRank, InstanceId, RankLoad, SequenceHash, Target, Timestamp, Tokens, WorkerId,
};

use super::{Wire, invalid, required, wire};
use crate::{DecodeError, LoadReport, ReservationBatch, ReservationChange};

impl Wire for LoadReport {
    const WHAT: &'static str = "load report";
    type Message = wire::LoadReport;

    fn to_wire(&self) -> wire::LoadReport {
        let rank = |load: &RankLoad| wire::RankLoad {
            dp_rank: load.dp_rank.get(),
            running: load.running,
            waiting: load.waiting,
            kv_used: load.kv_used,
            at: load.at.as_micros(),
        };
        wire::LoadReport {
            worker: self.worker.to_string(),
            ranks: self.ranks.iter().map(rank).collect(),
        }
    }

    fn from_wire(message: wire::LoadReport) -> Result<Self, DecodeError> {
        let worker = WorkerId::new(&message.worker);
        let rank = |load: wire::RankLoad| {
            if !(0.0..=1.0).contains(&load.kv_used) {
                let why = format!("is {}, not a share", load.kv_used);
                return Err(invalid::<Self>("kv_used", why));
            }
            Ok(RankLoad {
                dp_rank: DpRank::new(load.dp_rank),
                running: load.running,
                waiting: load.waiting,
                kv_used: load.kv_used,
                at: Timestamp::from_micros(load.at),
            })
        };
        let ranks: Result<Vec<RankLoad>, DecodeError> =
            message.ranks.into_iter().map(rank).collect();
        Ok(Self {
            worker: worker.map_err(|why| invalid::<Self>("worker", why))?,
            ranks: ranks?,
        })
    }
}

impl Wire for ReservationBatch {
    const WHAT: &'static str = "reservation batch";
    type Message = wire::ReservationBatch;

    fn to_wire(&self) -> wire::ReservationBatch {
        wire::ReservationBatch {
            router: self.router.to_string(),
            at: self.at.as_micros(),
            changes: self.changes.iter().map(change_to_wire).collect(),
        }
    }

    fn from_wire(message: wire::ReservationBatch) -> Result<Self, DecodeError> {
        let router = InstanceId::new(&message.router);
        let changes: Result<Vec<ReservationChange>, DecodeError> =
            message.changes.into_iter().map(change_from_wire).collect();
        Ok(Self {
            router: router.map_err(|why| invalid::<Self>("router", why))?,
            at: Timestamp::from_micros(message.at),
            changes: changes?,
        })
    }
}

fn change_to_wire(change: &ReservationChange) -> wire::ReservationChange {
    use wire::reservation_change::Change;
    let change = match change {
        ReservationChange::Reserve {
            id,
            target,
            uncached,
            landmarks,
            lease_until,
            conversation,
        } => Change::Reserve(wire::Reserve {
            id: id_to_wire(*id),
            target: Some(target.to_wire()),
            uncached: uncached.get(),
            landmarks: landmarks.iter().map(|it| it.get()).collect(),
            lease_until: lease_until.as_micros(),
            conversation: *conversation,
        }),
        ReservationChange::Release { id } => Change::Release(wire::Release {
            id: id_to_wire(*id),
        }),
    };
    wire::ReservationChange {
        change: Some(change),
    }
}

fn change_from_wire(message: wire::ReservationChange) -> Result<ReservationChange, DecodeError> {
    use wire::reservation_change::Change;
    Ok(
        match required::<ReservationBatch, _>("change", message.change)? {
            Change::Reserve(it) => ReservationChange::Reserve {
                id: id_from_wire(&it.id)?,
                target: Target::from_wire(required::<ReservationBatch, _>("target", it.target)?)?,
                uncached: Tokens::new(it.uncached),
                landmarks: it.landmarks.into_iter().map(SequenceHash::new).collect(),
                lease_until: Timestamp::from_micros(it.lease_until),
                conversation: it.conversation,
            },
            Change::Release(it) => ReservationChange::Release {
                id: id_from_wire(&it.id)?,
            },
        },
    )
}

fn id_to_wire(id: DecisionId) -> Bytes {
    Bytes::copy_from_slice(&id.get().to_be_bytes())
}

fn id_from_wire(bytes: &[u8]) -> Result<DecisionId, DecodeError> {
    let bytes = <[u8; 16]>::try_from(bytes)
        .map_err(|_| invalid::<ReservationBatch>("id", "is not 16 bytes long"))?;
    Ok(DecisionId::new(u128::from_be_bytes(bytes)))
}
