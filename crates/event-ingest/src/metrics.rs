//! What the ingest counts.

use domain::{DpRank, WorkerId};
use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    gaps: IntCounterVec,
    events: IntCounterVec,
    replays: IntCounterVec,
    restarts: IntCounterVec,
    pages: IntCounterVec,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let per_rank = |name: &str, help: &str, more: &[&str]| {
            let labels = [&["worker", "dp_rank"], more].concat();
            register(
                registry,
                IntCounterVec::new(Opts::new(name, help), &labels)?,
            )
        };
        Ok(Self {
            gaps: per_rank(
                "rankway_event_gaps_total",
                "Gaps seen in the numbers of KV-event messages",
                &[],
            )?,
            events: per_rank(
                "rankway_events_total",
                "KV-event messages, and events within them that were left out, by what became of them",
                &["result"],
            )?,
            replays: per_rank(
                "rankway_event_replays_total",
                "Replays of KV events by how they ended",
                &["result"],
            )?,
            restarts: per_rank(
                "rankway_worker_restarts_total",
                "Restarts of an engine, by the rank that showed it and how it did",
                &["cause"],
            )?,
            pages: per_rank(
                "rankway_event_pages_total",
                "Pages smaller than a block, by what became of them",
                &["result"],
            )?,
        })
    }

    /// The counters of one rank's socket.
    pub(crate) fn of(&self, worker: &WorkerId, dp_rank: DpRank) -> RankMetrics {
        RankMetrics {
            labels: [worker.to_string(), dp_rank.to_string()],
            all: self.clone(),
        }
    }
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// The counters of one rank, labelled with the rank its socket was registered for.
#[derive(Clone, Debug)]
pub(crate) struct RankMetrics {
    labels: [String; 2],
    all: Metrics,
}

impl RankMetrics {
    pub(crate) fn gap(&self) {
        let [worker, dp_rank] = &self.labels;
        self.all.gaps.with_label_values(&[worker, dp_rank]).inc();
    }

    /// One message or event, whose fate is one of a fixed few.
    pub(crate) fn event(&self, result: &str) {
        self.events(result, 1);
    }

    pub(crate) fn events(&self, result: &str, count: u64) {
        self.counter(&self.all.events, result).inc_by(count);
    }

    pub(crate) fn replay(&self, result: &str) {
        self.counter(&self.all.replays, result).inc();
    }

    pub(crate) fn restart(&self, cause: &str) {
        self.counter(&self.all.restarts, cause).inc();
    }

    pub(crate) fn pages(&self, result: &str, count: u64) {
        self.counter(&self.all.pages, result).inc_by(count);
    }

    fn counter(&self, vec: &IntCounterVec, result: &str) -> IntCounter {
        let [worker, dp_rank] = &self.labels;
        vec.with_label_values(&[worker.as_str(), dp_rank, result])
    }
}
