//! Records that exist only on the bus.

use std::time::Duration;

use domain::{
    InstanceId, RankLoad, ReservationChange, ServiceInstance, Timestamp, Worker, WorkerId,
};

use crate::{DecodeError, Encoding};

/// One worker's gauges: payload of `load`.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadReport {
    /// The worker.
    pub worker: WorkerId,
    /// Its ranks, as far as it reports them.
    pub ranks: Vec<RankLoad>,
}

/// What a router has sent or seen the end of, gathered over at most 50 ms: payload of `reservations`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationBatch {
    /// Which router.
    pub router: InstanceId,
    /// When it was sent.
    pub at: Timestamp,
    /// In order.
    pub changes: Vec<ReservationChange>,
}

/// A registration: payload of `fleet`.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetEntry {
    /// An engine, by its adapter.
    Worker(Worker),
    /// A service process, by itself.
    Service(ServiceInstance),
}

/// The longest lease in `fleet` that is believed, from when it is heard of. Writers take 15 s; the rest is for clocks that
/// differ. An entry that says more was forged or is broken, and would outlive whoever it describes.
pub const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// An entry of `fleet` that is not believed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] DecodeError),
    /// It describes somebody else than the key it is under.
    #[error("it describes {0}, and is under another key")]
    Misplaced(String),
}

impl FleetEntry {
    /// Reads an entry heard of at `now` under `key`. Its lease ends after [`LONGEST_LEASE`] at the latest; and who may
    /// write a key may speak for whom it names, and for nobody else.
    pub fn heard(bytes: &[u8], key: &[u8], now: Timestamp) -> Result<Self, FleetError> {
        let mut entry = Self::from_bytes(bytes)?;
        let (id, lease) = match &mut entry {
            Self::Worker(worker) => (worker.id.as_str(), &mut worker.lease_until),
            Self::Service(service) => (service.id.as_str(), &mut service.lease_until),
        };
        if id.as_bytes() != key {
            return Err(FleetError::Misplaced(id.to_owned()));
        }
        *lease = (*lease).min(now + LONGEST_LEASE);
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use domain::{ServiceKind, Share};

    use super::*;

    fn entry(lease_until: Timestamp) -> FleetEntry {
        FleetEntry::Service(ServiceInstance {
            id: "router-1".parse().expect("an id"),
            kind: ServiceKind::Router,
            address: String::new(),
            share: Share::Whole,
            ready: true,
            distrust: Vec::new(),
            secret: None,
            lease_until,
        })
    }

    fn heard(entry: &FleetEntry, key: &str, now: Timestamp) -> Result<FleetEntry, String> {
        let heard = FleetEntry::heard(&entry.to_bytes(), key.as_bytes(), now);
        heard.map_err(|it| it.to_string())
    }

    #[test]
    fn a_lease_that_was_forged_ends_after_the_longest_there_is() {
        let now = Timestamp::ZERO + Duration::from_secs(1_000);
        let honest = entry(now + Duration::from_secs(15));
        assert_eq!(heard(&honest, "router-1", now), Ok(honest));
        let forged = entry(Timestamp::from_micros(u64::MAX));
        let until = entry(now + LONGEST_LEASE);
        assert_eq!(heard(&forged, "router-1", now), Ok(until));
    }

    #[test]
    fn who_writes_one_key_speaks_for_nobody_else() {
        for key in ["", "router-2", "router-1 ", "router"] {
            let refused = heard(&entry(Timestamp::ZERO), key, Timestamp::ZERO).unwrap_err();
            assert!(refused.contains("describes router-1"), "{refused}");
        }
        assert!(FleetEntry::heard(b"\xff", b"router-1", Timestamp::ZERO).is_err());
    }
}
