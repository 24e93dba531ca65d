//! What the embedded bus counts, as metrics.

use std::sync::Arc;

use bus_local::{Counts, LocalBus};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry};

/// Reads the counts whenever metrics are asked for.
struct BusCollector {
    bus: Arc<LocalBus>,
    events: IntGaugeVec,
}

/// Registers `rankway_bus_events{event}`: what has happened to the embedded bus since it was opened.
pub(crate) fn register(registry: &Registry, bus: Arc<LocalBus>) -> prometheus::Result<()> {
    let opts = Opts::new(
        "rankway_bus_events",
        "what has happened to the embedded bus since it was opened",
    );
    let events = IntGaugeVec::new(opts, &["event"])?;
    registry.register(Box::new(BusCollector { bus, events }))
}

impl Collector for BusCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.events.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Counts {
            lost_ephemeral_records,
            torn_tails,
            damaged_files,
            failed_writes,
            failed_syncs,
            trimmed_segments,
            compactions,
        } = self.bus.counts();
        let counts = [
            ("lost_ephemeral_record", lost_ephemeral_records),
            ("torn_tail", torn_tails),
            ("damaged_file", damaged_files),
            ("failed_write", failed_writes),
            ("failed_sync", failed_syncs),
            ("trimmed_segment", trimmed_segments),
            ("compaction", compactions),
        ];
        for (event, count) in counts {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.events.with_label_values(&[event]).set(count);
        }
        self.events.collect()
    }
}
