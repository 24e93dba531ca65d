//! What the store counts.

use affinity::BindingState;
use domain::WorkerId;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

/// As what a binding is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Provisional,
    Confirmed,
}

/// The store's metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    bindings: IntGaugeVec,
    conflicts: IntCounterVec,
    /// Idle bindings that ended because there were more than there may be.
    pub(crate) displaced: IntCounter,
    /// Writes that met another revision, and were done again on what was found.
    pub(crate) rereads: IntCounter,
    /// Reads and writes that the bus did not do.
    pub(crate) failures: IntCounter,
    /// Entries of the table that are no bindings.
    pub(crate) unreadable: IntCounter,
    /// Calls that found the queue full, and waited for room.
    pub(crate) queue_full: IntCounter,
    /// Acquires and moves given back at once because their caller had left.
    pub(crate) abandoned: IntCounter,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let bindings = IntGaugeVec::new(
            Opts::new("rankway_bindings", "live bindings by state"),
            &["state"],
        )?;
        registry.register(Box::new(bindings.clone()))?;
        let conflicts = IntCounterVec::new(
            Opts::new(
                "rankway_binding_conflicts_total",
                "turns that an engine served on another rank than the bound one",
            ),
            &["worker"],
        )?;
        registry.register(Box::new(conflicts.clone()))?;
        for state in ["provisional", "confirmed"] {
            bindings.with_label_values(&[state]).set(0);
        }
        Ok(Self {
            bindings,
            conflicts,
            displaced: counter(
                "rankway_bindings_displaced_total",
                "idle bindings that ended to make room at the bound",
            )?,
            rereads: counter(
                "rankway_binding_rereads_total",
                "writes that met another revision",
            )?,
            failures: counter(
                "rankway_binding_failures_total",
                "reads and writes of bindings that the bus did not do",
            )?,
            unreadable: counter(
                "rankway_binding_unreadable_total",
                "entries of the table that are no bindings",
            )?,
            queue_full: counter(
                "rankway_affinity_queue_full_total",
                "calls that had to wait for room in the queue",
            )?,
            abandoned: counter(
                "rankway_affinity_abandoned_total",
                "acquires and moves whose caller had left",
            )?,
        })
    }

    /// One binding went from one state to another; none is no binding.
    pub(crate) fn count(&self, before: Option<Counted>, after: Option<Counted>) {
        if let Some(state) = before {
            self.bindings.with_label_values(&[state.label()]).dec();
        }
        if let Some(state) = after {
            self.bindings.with_label_values(&[state.label()]).inc();
        }
    }

    pub(crate) fn conflict(&self, worker: &WorkerId) {
        self.conflicts.with_label_values(&[worker.as_str()]).inc();
    }
}

impl Counted {
    pub(crate) const fn of(state: BindingState) -> Self {
        match state {
            BindingState::Provisional { .. } => Self::Provisional,
            BindingState::Confirmed => Self::Confirmed,
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Provisional => "provisional",
            Self::Confirmed => "confirmed",
        }
    }
}
