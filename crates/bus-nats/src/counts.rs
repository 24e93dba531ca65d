//! What has happened since the bus was connected.

use std::sync::atomic::{AtomicU64, Ordering};

/// What has happened since the bus was connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often the connection was lost.
    pub lost_connections: u64,
    /// Records of ephemeral topics that were not sent, because no server took them.
    pub dropped_ephemeral_records: u64,
    /// Records of ephemeral topics that slow readers have missed.
    pub lost_ephemeral_records: u64,
    /// Records of durable topics that were not acknowledged in time. Whoever appended them was told.
    pub failed_records: u64,
    /// Records that were sent again, because a former try was not acknowledged or another writer came between.
    pub repeated_records: u64,
    /// Reads and watches that went on after an interruption.
    pub resumed_streams: u64,
    /// Marks of deleted keys that were cleared away.
    pub cleared_deletions: u64,
}

/// The same while it is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) losses: AtomicU64,
    pub(crate) dropped_ephemeral_records: AtomicU64,
    pub(crate) lost_ephemeral_records: AtomicU64,
    pub(crate) failed_records: AtomicU64,
    pub(crate) repeated_records: AtomicU64,
    pub(crate) resumed_streams: AtomicU64,
    pub(crate) cleared_deletions: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            lost_connections: read(&self.losses),
            dropped_ephemeral_records: read(&self.dropped_ephemeral_records),
            lost_ephemeral_records: read(&self.lost_ephemeral_records),
            failed_records: read(&self.failed_records),
            repeated_records: read(&self.repeated_records),
            resumed_streams: read(&self.resumed_streams),
            cleared_deletions: read(&self.cleared_deletions),
        }
    }
}
