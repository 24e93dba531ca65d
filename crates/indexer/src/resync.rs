//! Asking the feed for what is missing: one request at a time a target, again with growing patience.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use contracts::rpc::{CallError, Feed};
use domain::{EventSeq, Target, Timestamp};
use tokio::task::{self, JoinSet};
use tracing::{info, warn};

use crate::metrics::Metrics;

/// How long an answer of the feed may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a hole may stand before it is asked for: what fills it may be the next thing in the log, as after
/// a restart.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// How long what was asked for may take to come through the log before it is asked for again; doubled each
/// time without progress.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest patience.
const MAX_PATIENCE: Duration = Duration::from_secs(60);
/// Requests on their way at once; other targets wait for the next tick. A feed has one task a rank, so this
/// only bounds what a restart of the whole fleet brings.
const MAX_CALLS: usize = 64;

/// The targets that miss batches.
pub(crate) struct Resyncs {
    feed: Arc<dyn Feed>,
    metrics: Metrics,
    missing: BTreeMap<Target, Missing>,
    calls: JoinSet<(Target, Result<(), CallError>)>,
}

struct Missing {
    from: EventSeq,
    attempts: u32,
    call: Option<task::Id>,
    again_at: Timestamp,
}

impl Resyncs {
    pub(crate) fn new(feed: Arc<dyn Feed>, metrics: Metrics) -> Self {
        Self {
            feed,
            metrics,
            missing: BTreeMap::new(),
            calls: JoinSet::new(),
        }
    }

    /// `target` misses everything from `from` on. Asks soon, unless it has asked already.
    pub(crate) fn want(&mut self, target: &Target, from: EventSeq, now: Timestamp) {
        let missing = self.missing.entry(target.clone());
        missing.or_insert(Missing {
            from,
            attempts: 0,
            call: None,
            again_at: now + FIRST_PATIENCE,
        });
    }

    /// `target` has just got something, and still misses what is from `from` on: more may be on its way.
    pub(crate) fn progress(&mut self, target: &Target, from: EventSeq, now: Timestamp) {
        self.want(target, from, now);
        if let Some(missing) = self.missing.get_mut(target) {
            missing.from = from;
            missing.attempts = 0;
            missing.again_at = now + PATIENCE;
        }
    }

    /// `target` misses nothing any more, or is not there any more.
    pub(crate) fn done(&mut self, target: &Target) {
        self.missing.remove(target);
    }

    /// Asks again where patience has ended.
    pub(crate) fn call_due(&mut self, now: Timestamp) {
        for (target, missing) in &mut self.missing {
            if missing.call.is_some() || now < missing.again_at || MAX_CALLS <= self.calls.len() {
                continue;
            }
            let (feed, target, from) = (self.feed.clone(), target.clone(), missing.from);
            let call = self.calls.spawn(async move {
                let call = tokio::time::timeout(CALL_TIMEOUT, feed.resync(&target, from));
                let late = CallError::DeadlineExceeded { service: "feed" };
                let result = call.await.unwrap_or(Err(late));
                (target, result)
            });
            missing.call = Some(call.id());
        }
    }

    /// Waits until a request has been answered; for ever if none is on its way.
    pub(crate) async fn answered(&mut self) -> Answered {
        match self.calls.join_next().await {
            Some(Ok(answer)) => Answered(Ok(answer)),
            Some(Err(broken)) => Answered(Err(broken.id())),
            None => std::future::pending().await,
        }
    }

    /// Takes note of an answer.
    pub(crate) fn note(&mut self, Answered(answer): Answered, now: Timestamp) {
        let (label, found) = match &answer {
            Ok((target, Ok(()))) => ("queued", self.missing.get_key_value(target)),
            Ok((target, Err(_))) => ("failed", self.missing.get_key_value(target)),
            Err(call) => {
                let of_call = |it: &(&Target, &Missing)| it.1.call == Some(*call);
                ("panicked", self.missing.iter().find(of_call))
            }
        };
        self.metrics.resyncs.with_label_values(&[label]).inc();
        let Some((target, Missing { from, .. })) = found else {
            return;
        };
        match answer {
            Ok((_, Ok(()))) => info!(%target, %from, "asked the feed again for lost events"),
            Ok((_, Err(ref error))) => warn!(%target, %from, %error, "resync failed"),
            Err(_) => warn!(%target, %from, "resync panicked"),
        }
        let target = target.clone();
        let missing = self
            .missing
            .get_mut(&target)
            .expect("it has just been found");
        missing.call = None;
        let patience = PATIENCE.saturating_mul(1 << missing.attempts.min(10));
        missing.again_at = now + patience.min(MAX_PATIENCE);
        missing.attempts = missing.attempts.saturating_add(1);
    }
}

/// One answer of the feed.
pub(crate) struct Answered(Result<(Target, Result<(), CallError>), task::Id>);
