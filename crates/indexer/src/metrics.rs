//! What the indexer tells of itself.

use contracts::rpc::Shard;
use domain::Target;
use prefix_index::Applied;
use prometheus::core::Collector;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// Labels of a rank.
const RANK: &[&str] = &["worker", "dp_rank"];

/// All of the indexer's metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    /// Distinct blocks a rank holds.
    pub(crate) blocks: IntGaugeVec,
    /// How old the newest batch of a rank was when it was applied.
    pub(crate) lag_seconds: GaugeVec,
    /// Batches by what became of them.
    pub(crate) batches: IntCounterVec,
    /// Blocks by what an operation did to them.
    op_blocks: IntCounterVec,
    /// Requests to the feed, by result.
    pub(crate) resyncs: IntCounterVec,
    /// Targets whose claims are not complete.
    pub(crate) not_ready: IntGauge,
    /// Blocks forgotten because a bound was reached, by what they were remembered for.
    pub(crate) forgotten: IntGaugeVec,
    /// Bytes written to the store, by kind.
    pub(crate) store_bytes: IntCounterVec,
    /// Writes to the store that failed.
    pub(crate) store_failures: IntCounter,
    /// Whether nothing is saved: 1 from when a store fails until a new one has everything.
    pub(crate) store_degraded: IntGauge,
    /// Stores found unusable and moved aside.
    pub(crate) store_broken: IntCounter,
    /// Logs and tables that had to be opened again.
    pub(crate) reopened: IntCounter,
}

impl Metrics {
    /// Those of one shard of several are told apart by a label, so that they fit into one process.
    pub(crate) fn new(registry: &Registry, shard: Shard) -> Result<Self, prometheus::Error> {
        let opts = |name: &str, help: &str| {
            let opts = Opts::new(format!("rankway_index_{name}"), help);
            match shard {
                Shard::WHOLE => opts,
                shard => opts.const_label("shard", shard.to_string()),
            }
        };
        Ok(Self {
            blocks: register(
                registry,
                IntGaugeVec::new(opts("blocks", "Distinct blocks a rank holds."), RANK)?,
            )?,
            lag_seconds: register(
                registry,
                GaugeVec::new(
                    opts("lag_seconds", "Age of a rank's newest batch when applied."),
                    RANK,
                )?,
            )?,
            batches: register(
                registry,
                IntCounterVec::new(opts("batches_total", "Batches by result."), &["result"])?,
            )?,
            op_blocks: register(
                registry,
                IntCounterVec::new(opts("op_blocks_total", "Blocks by result."), &["result"])?,
            )?,
            resyncs: register(
                registry,
                IntCounterVec::new(opts("resyncs_total", "Requests to the feed."), &["result"])?,
            )?,
            not_ready: register(
                registry,
                IntGauge::with_opts(opts("targets_not_ready", "Targets not complete."))?,
            )?,
            forgotten: register(
                registry,
                IntGaugeVec::new(
                    opts("forgotten_blocks", "Blocks forgotten at a bound."),
                    &["kind"],
                )?,
            )?,
            store_bytes: register(
                registry,
                IntCounterVec::new(opts("store_bytes_total", "Bytes written."), &["kind"])?,
            )?,
            store_failures: register(
                registry,
                IntCounter::with_opts(opts("store_failures_total", "Failed writes."))?,
            )?,
            store_degraded: register(
                registry,
                IntGauge::with_opts(opts("store_degraded", "1 while nothing is saved."))?,
            )?,
            store_broken: register(
                registry,
                IntCounter::with_opts(opts("store_broken_total", "Stores moved aside."))?,
            )?,
            reopened: register(
                registry,
                IntCounter::with_opts(opts("reopened_total", "Streams opened again."))?,
            )?,
        })
    }

    pub(crate) fn batch(&self, result: &str) {
        self.batches.with_label_values(&[result]).inc();
    }

    pub(crate) fn applied(&self, applied: &Applied) {
        let Applied {
            stored,
            duplicates,
            orphans,
            renamed,
            removed,
            retiered,
            unknown,
        } = *applied;
        for (result, blocks) in [
            ("stored", stored),
            ("duplicate", duplicates),
            ("orphan", orphans),
            ("renamed", renamed),
            ("removed", removed),
            ("retiered", retiered),
            ("unknown", unknown),
        ] {
            if 0 < blocks {
                self.op_blocks.with_label_values(&[result]).inc_by(blocks);
            }
        }
    }

    /// Takes a rank's series away. Fails only where there are none.
    pub(crate) fn forget(&self, target: &Target) {
        let rank = target.dp_rank.to_string();
        let labels = [target.worker.as_str(), rank.as_str()];
        let _absent = self.blocks.remove_label_values(&labels);
        let _absent = self.lag_seconds.remove_label_values(&labels);
    }
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
