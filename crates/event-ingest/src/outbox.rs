//! What one rank has to append, in order, and how far that brings it.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Partition, Record};
use contracts::{Encoding, topics};
use domain::{DpRank, Epoch, KvBatch, KvOp, Target, WorkerId};
use event_feed::Position;
use service_kit::{CancellationToken, error_chain};

use crate::findings::Finding;
use crate::pages::Changes;
use crate::parts;
use crate::positions::PositionReports;

/// Records are appended together up to so many bytes: one round trip or disk flush serves them all.
const MAX_APPEND_BYTES: usize = 1 << 20;
/// The first and the longest wait before an append is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Why what waits could not be appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlushError {
    /// The bus refuses it for good.
    #[error("append the events of {worker}/{dp_rank}")]
    Refused {
        worker: WorkerId,
        dp_rank: DpRank,
        #[source]
        source: BusError,
    },
    /// The process ends.
    #[error("shutting down")]
    ShuttingDown,
}

pub(crate) struct Outbox {
    worker: WorkerId,
    dp_rank: DpRank,
    at: Partition,
    bus: Arc<dyn Bus>,
    reports: PositionReports,
    finding: Finding,
    records: Vec<Record>,
    bytes: usize,
    /// How far what was appended brings the rank.
    reached: Option<Position>,
}

impl Outbox {
    pub(crate) fn new(
        worker: WorkerId,
        dp_rank: DpRank,
        bus: Arc<dyn Bus>,
        reports: PositionReports,
        finding: Finding,
    ) -> Self {
        Self {
            at: topics::kv_events_of(&worker, dp_rank),
            worker,
            dp_rank,
            bus,
            reports,
            finding,
            records: Vec::new(),
            bytes: 0,
            reached: None,
        }
    }

    /// Whether it should be flushed before more is added.
    pub(crate) fn is_full(&self) -> bool {
        MAX_APPEND_BYTES <= self.bytes
    }

    /// The rank it is for.
    pub(crate) fn dp_rank(&self) -> DpRank {
        self.dp_rank
    }

    /// How far the rank has been appended through this outbox.
    pub(crate) fn reached(&self) -> Option<Position> {
        self.reached
    }

    /// Adds what the message at `position` says, in parts.
    pub(crate) fn add(&mut self, position: Position, ops: Vec<KvOp>) {
        let ops = parts::split(ops);
        // A message of 2^32 parts would be a petabyte.
        let parts = u32::try_from(ops.len()).unwrap_or(u32::MAX);
        for (part, ops) in (0..parts).zip(ops) {
            let batch = KvBatch {
                target: self.target(position.epoch),
                seq: position.seq,
                part,
                parts,
                engine_ts: position.engine_ts,
                ops,
            };
            let bytes = batch.to_bytes();
            self.bytes += bytes.len();
            self.records.push(Record(bytes));
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Appends all that waits, trying again for as long as the bus is unavailable, and then reports that
    /// this brings the rank to `reached`, and its pages to where `pages` leads.
    pub(crate) async fn flush(
        &mut self,
        reached: Option<Position>,
        pages: Option<Changes>,
        shutdown: &CancellationToken,
    ) -> Result<(), FlushError> {
        let mut wait = RETRY.0;
        while !self.records.is_empty() {
            match self.bus.append(&self.at, self.records.clone()).await {
                Ok(_) => {
                    self.records.clear();
                    if wait != RETRY.0 {
                        self.finding.is_well();
                    }
                }
                Err(error) if error.is_retryable() => {
                    if wait == RETRY.0 {
                        let (worker, dp_rank) = (&self.worker, self.dp_rank);
                        let error = error_chain(&error);
                        tracing::warn!(%worker, %dp_rank, error, "append failed, trying again");
                        self.finding.is(format!("the log takes nothing: {error}"));
                    }
                    tokio::select! {
                        biased;
                        () = shutdown.cancelled() => return Err(FlushError::ShuttingDown),
                        () = tokio::time::sleep(wait) => {}
                    }
                    wait = RETRY.1.min(wait * 2);
                }
                Err(source) => {
                    return Err(FlushError::Refused {
                        worker: self.worker.clone(),
                        dp_rank: self.dp_rank,
                        source,
                    });
                }
            }
        }
        self.bytes = 0;
        if let Some(position) = reached {
            self.reached = reached;
            let rank = (self.worker.clone(), self.dp_rank);
            self.reports.send(rank, position, pages).await;
        }
        Ok(())
    }

    fn target(&self, epoch: Epoch) -> Target {
        Target {
            worker: self.worker.clone(),
            epoch,
            dp_rank: self.dp_rank,
        }
    }
}
