//! Records that exist only on the bus.

use domain::{
    InstanceId, RankLoad, ReservationChange, ServiceInstance, Timestamp, Worker, WorkerId,
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

/// A registration: payload of `fleet`.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetEntry {
    /// An engine, by its adapter.
    Worker(Worker),
    /// A service process, by itself.
    Service(ServiceInstance),
}
