//! Records that exist only on the bus.

use domain::{
    DpRank, InstanceId, RankLoad, ReservationChange, ServiceInstance, Timestamp, Worker, WorkerId,
};

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

/// No new conversations here, and those there are go elsewhere at their next turn: payload of `drains`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The worker, in whatever incarnation.
    pub worker: WorkerId,
    /// Its rank; none for all of them.
    pub dp_rank: Option<DpRank>,
    /// Who wants it.
    pub actor: InstanceId,
    /// Since when.
    pub since: Timestamp,
}

impl Drain {
    /// What it is kept under: `worker` or `worker/dp_rank`. No worker's id contains the separator.
    pub fn key(worker: &WorkerId, dp_rank: Option<DpRank>) -> String {
        match dp_rank {
            Some(dp_rank) => format!("{worker}/{dp_rank}"),
            None => worker.to_string(),
        }
    }

    /// Reads such a key; none if it is none.
    pub fn read_key(key: &str) -> Option<(WorkerId, Option<DpRank>)> {
        let (worker, dp_rank) = match key.split_once('/') {
            Some((worker, rank)) => (worker, Some(DpRank::new(rank.parse().ok()?))),
            None => (key, None),
        };
        Some((worker.parse().ok()?, dp_rank))
    }
}

/// A registration: payload of `fleet`.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetEntry {
    /// An engine, by its adapter.
    Worker(Worker),
    /// A service process, by itself.
    Service(ServiceInstance),
}
