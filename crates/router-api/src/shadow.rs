//! A second policy, asked about every live decision: what it would have made of the same snapshot. Off the path of the
//! requests, and without a binding or a reservation. What nobody commits to is not asked about.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use placement::Policy;
use prometheus::{CounterVec, IntCounter, IntCounterVec, Opts, Registry};
use routing::{Decision, Rival, Rivalry};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use crate::metrics::registered;
use crate::replica::Replica;
use crate::view::names::reason_kind;

/// Decisions that wait to be compared: half a second of 2,000 requests, and what a burst leaves.
const MAX_WAITING: usize = 1_024;

/// A policy in the shadow.
pub(crate) struct Shadow {
    /// None where no policy is.
    on: Option<On>,
}

struct On {
    policy: Policy,
    sender: mpsc::Sender<Arc<Decision>>,
    metrics: ShadowMetrics,
    /// Guards what was found; held for one decision or one look.
    found: Mutex<Found>,
}

/// What comparing has come to.
#[derive(Clone, Default)]
pub(crate) struct Found {
    pub(crate) total: Rivalry,
    /// By what decided where the requests went.
    pub(crate) by_reason: BTreeMap<String, Rivalry>,
    /// The last decision that would have gone elsewhere.
    pub(crate) last_flip: Option<Flip>,
}

#[derive(Clone)]
pub(crate) struct Flip {
    pub(crate) decision: Arc<Decision>,
    pub(crate) rival: Rival,
}

/// What is shown of it.
pub(crate) struct Report {
    pub(crate) policy: Policy,
    pub(crate) found: Found,
    pub(crate) dropped: u64,
    pub(crate) waiting: usize,
}

struct ShadowMetrics {
    decisions: IntCounterVec,
    dropped: IntCounter,
    seconds: CounterVec,
    tokens: CounterVec,
}

impl ShadowMetrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let decisions = Opts::new(
            "rankway_shadow_decisions_total",
            "Decisions compared with the policy in the shadow, by result: same, flip, or bound for both",
        );
        let dropped = IntCounter::new(
            "rankway_shadow_dropped_total",
            "Decisions that were not compared because too many waited",
        )?;
        let seconds = Opts::new(
            "rankway_shadow_seconds_total",
            "Predicted seconds that requests would have cost less (gained) or more (lost) by the policy in the shadow",
        );
        let tokens = Opts::new(
            "rankway_shadow_tokens_total",
            "Cached tokens that its places held more (gained) or less (lost) than those that were chosen",
        );
        Ok(Self {
            decisions: registered(registry, IntCounterVec::new(decisions, &["result"])?)?,
            dropped: registered(registry, dropped)?,
            seconds: registered(registry, CounterVec::new(seconds, &["kind"])?)?,
            tokens: registered(registry, CounterVec::new(tokens, &["kind"])?)?,
        })
    }

    fn count(&self, rival: &Rival) {
        let result = match rival {
            Rival { asked: false, .. } => "bound",
            Rival { flips: true, .. } => "flip",
            Rival { flips: false, .. } => "same",
        };
        self.decisions.with_label_values(&[result]).inc();
        for (counters, gain) in [
            (&self.seconds, rival.gain.unwrap_or(0.0)),
            (&self.tokens, rival.held),
        ] {
            let kind = if gain < 0.0 { "lost" } else { "gained" };
            counters.with_label_values(&[kind]).inc_by(gain.abs());
        }
    }
}

impl Shadow {
    /// Without a policy nothing is compared.
    pub(crate) fn new(
        policy: Option<Policy>,
        registry: &Registry,
    ) -> Result<(Self, mpsc::Receiver<Arc<Decision>>), prometheus::Error> {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let on = match policy {
            Some(policy) => Some(On {
                policy,
                sender,
                metrics: ShadowMetrics::new(registry)?,
                found: Mutex::default(),
            }),
            None => None,
        };
        Ok((Self { on }, receiver))
    }

    /// A request has been placed.
    pub(crate) fn decided(&self, decision: &Arc<Decision>) {
        if let Some(on) = &self.on
            && on.sender.try_send(decision.clone()).is_err()
        {
            on.metrics.dropped.inc();
        }
    }

    /// What has been found so far; none where no policy is in the shadow.
    pub(crate) fn report(&self) -> Option<Report> {
        let on = self.on.as_ref()?;
        Some(Report {
            policy: on.policy,
            found: on.lock().clone(),
            dropped: on.metrics.dropped.get(),
            waiting: on.sender.max_capacity() - on.sender.capacity(),
        })
    }
}

/// Compares what comes, for ever.
pub(crate) async fn serve(replica: Arc<Replica>, mut decisions: mpsc::Receiver<Arc<Decision>>) {
    while let Some(decision) = decisions.recv().await {
        if let Some(on) = &replica.shadow.on {
            on.compare(decision);
        }
        // Requests come first.
        yield_now().await;
    }
    // Without a policy nobody sends anything.
    std::future::pending().await
}

impl On {
    fn compare(&self, decision: Arc<Decision>) {
        // Where the live decision found a target, this one does too.
        let Some(rival) = Rival::of(&decision.made(), self.policy) else {
            return;
        };
        self.metrics.count(&rival);
        let mut found = self.lock();
        found.total.add(&rival);
        let reason = reason_kind(decision.reason);
        found.by_reason.entry(reason).or_default().add(&rival);
        if rival.flips {
            found.last_flip = Some(Flip { decision, rival });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
