//! What the adapter counts.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// Rank headers of clients that were removed.
    pub(crate) stripped_headers: IntCounter,
    /// Answers, or frames of them, too long to be read for their usage.
    pub(crate) unread_usage: IntCounter,
    /// Failed questions to an engine, by worker.
    pub(crate) probe_failures: IntCounterVec,
    /// Load reports and registrations the bus did not take, by worker.
    pub(crate) unpublished: IntCounterVec,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let by_worker = |name: &str, help: &str| {
            let vec = IntCounterVec::new(Opts::new(name, help), &["worker"])?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let single = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Self {
            stripped_headers: single(
                "rankway_rank_headers_stripped_total",
                "Engine rank headers sent by clients and removed",
            )?,
            unread_usage: single(
                "rankway_usage_unread_total",
                "Answers or frames too long to be read for their usage",
            )?,
            probe_failures: by_worker(
                "rankway_probe_failures_total",
                "Questions an engine did not answer",
            )?,
            unpublished: by_worker(
                "rankway_adapter_unpublished_total",
                "Load reports and registrations that the bus did not take",
            )?,
        })
    }
}
