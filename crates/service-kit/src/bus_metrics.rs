//! What the bus counts, as metrics.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry};

use crate::OpenBus;

/// Reads the counts whenever metrics are asked for.
struct BusCollector {
    bus: OpenBus,
    events: IntGaugeVec,
}

impl OpenBus {
    /// Registers `rankway_bus_events{event}`: what has happened to the bus since it was opened.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        let opts = Opts::new(
            "rankway_bus_events",
            "what has happened to the bus since this process opened it",
        );
        let events = IntGaugeVec::new(opts, &["event"])?;
        let bus = self.clone();
        registry.register(Box::new(BusCollector { bus, events }))
    }
}

impl Collector for BusCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.events.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (event, count) in counts(&self.bus) {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.events.with_label_values(&[event]).set(count);
        }
        self.events.collect()
    }
}

fn counts(bus: &OpenBus) -> [(&'static str, u64); 7] {
    match bus {
        OpenBus::Local(bus) => {
            let bus_local::Counts {
                lost_ephemeral_records,
                torn_tails,
                damaged_files,
                failed_writes,
                failed_syncs,
                trimmed_segments,
                compactions,
            } = bus.counts();
            [
                ("lost_ephemeral_record", lost_ephemeral_records),
                ("torn_tail", torn_tails),
                ("damaged_file", damaged_files),
                ("failed_write", failed_writes),
                ("failed_sync", failed_syncs),
                ("trimmed_segment", trimmed_segments),
                ("compaction", compactions),
            ]
        }
        OpenBus::Nats(bus) => {
            let bus_nats::Counts {
                lost_connections,
                dropped_ephemeral_records,
                lost_ephemeral_records,
                failed_records,
                repeated_records,
                resumed_streams,
                cleared_deletions,
            } = bus.counts();
            [
                ("lost_connection", lost_connections),
                ("dropped_ephemeral_record", dropped_ephemeral_records),
                ("lost_ephemeral_record", lost_ephemeral_records),
                ("failed_record", failed_records),
                ("repeated_record", repeated_records),
                ("resumed_stream", resumed_streams),
                ("cleared_deletion", cleared_deletions),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::BusSettings;

    use super::*;

    #[tokio::test]
    async fn counts_are_read_when_metrics_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let settings = BusSettings::default();
        let bus = OpenBus::open(&settings, folder.path(), "test").await;
        let registry = Registry::new();
        bus.unwrap().register(&registry).unwrap();
        let families = registry.gather();
        assert_eq!(families[0].name(), "rankway_bus_events");
        let metrics = families[0].get_metric();
        let events: Vec<_> = metrics.iter().map(|it| it.get_label()[0].value()).collect();
        assert!(events.contains(&"failed_sync"), "{events:?}");
    }
}
