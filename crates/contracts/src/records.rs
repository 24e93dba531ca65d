//! Records that exist only on the bus.

use domain::{
    DecisionId, InstanceId, RankLoad, SequenceHash, ServiceInstance, Target, Timestamp, Tokens,
    Worker, WorkerId,
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

/// One change of a router's reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationChange {
    /// Prefill work was sent to a target.
    Reserve {
        /// The decision that sent it.
        id: DecisionId,
        /// Where to.
        target: Target,
        /// Tokens to be computed there.
        uncached: Tokens,
        /// Every 64th sequence hash of the request and its last: the prefix in flight.
        landmarks: Vec<SequenceHash>,
        /// When it ends by itself.
        lease_until: Timestamp,
    },
    /// It has ended: first token, failure, or the client left.
    Release {
        /// The decision that made it.
        id: DecisionId,
    },
}

/// A registration: payload of `fleet`.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetEntry {
    /// An engine, by its adapter.
    Worker(Worker),
    /// A service process, by itself.
    Service(ServiceInstance),
}
