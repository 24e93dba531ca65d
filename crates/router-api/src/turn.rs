//! One attempt at one request, from its decision to its end. Whatever happens to it, its reservation and its
//! lease are given back: the last resort is `drop`.

use std::sync::Arc;

use affinity::{ConversationKey, Evidence};
use contracts::rpc::{CallEnd, Confirm, Release};
use domain::{Target, Tokens};
use routing::{Decision, Outcome, Status};
use tokio::time::{Instant, timeout};

use crate::ledger::End;
use crate::replica::{ASK_TIMEOUT, Replica};

/// An attempt under way.
pub(crate) struct Turn {
    replica: Arc<Replica>,
    pub(crate) decision: Arc<Decision>,
    /// The conversation whose lease is held.
    lease: Option<ConversationKey>,
    streams: bool,
    dispatched: Instant,
    first_chunk: Option<Instant>,
    ended: bool,
}

impl Turn {
    /// Takes over a decision.
    pub(crate) fn new(replica: Arc<Replica>, decision: Decision, streams: bool) -> Self {
        let turn = Self {
            replica,
            decision: Arc::new(decision),
            lease: None,
            streams,
            dispatched: Instant::now(),
            first_chunk: None,
            ended: false,
        };
        turn.in_flight(1);
        turn
    }

    /// An acquire or rebind has given a lease.
    pub(crate) fn took_lease(&mut self, key: &ConversationKey) {
        self.replica.leases.took(key);
        self.lease = Some(key.clone());
    }

    /// The lease just taken is of no use: the binding is left to others.
    pub(crate) fn return_lease(&mut self) {
        if let Some(release) = self.release(&CallEnd::default()) {
            self.replica.leases.release(release);
        }
    }

    /// The decision has been changed: it goes elsewhere, or had to do without something.
    pub(crate) fn decided_anew(&mut self, decision: Decision) {
        self.in_flight(-1);
        self.decision = Arc::new(decision);
        self.in_flight(1);
    }

    /// The request is being sent.
    pub(crate) fn dispatched(&mut self, received: Instant) {
        self.dispatched = Instant::now();
        let added = self.dispatched.saturating_duration_since(received);
        let histogram = &self.replica.metrics.added_latency_seconds;
        histogram.observe(added.as_secs_f64());
    }

    /// The engine has answered with success and its first byte is there.
    pub(crate) fn first_chunk(&mut self) {
        if self.first_chunk.is_some() {
            return;
        }
        let now = Instant::now();
        self.first_chunk = Some(now);
        if self.streams {
            let ttft = now.saturating_duration_since(self.dispatched);
            self.replica.metrics.ends.first_byte(ttft);
        }
        let id = self.decision.id;
        let replica = &self.replica;
        replica.mind.lock().first_token(id, replica.clock.now());
        if let (Some(key), Some(target)) = (&self.lease, self.decision.target()) {
            replica.leases.confirm(Confirm {
                key: key.clone(),
                asked: target.clone(),
                observed: target.clone(),
                evidence: Evidence::Asked,
                actor: replica.instance.clone(),
            });
        }
    }

    /// It has ended.
    pub(crate) fn end(&mut self, status: Status, end: &CallEnd) {
        self.finish(status, end);
        if let Some(release) = self.release(end) {
            self.replica.leases.release(release);
        }
    }

    /// It has failed before its first byte and another target is to be tried: resolves when the store knows
    /// that the lease is given back, or does not answer.
    pub(crate) async fn give_up(mut self, status: Status) {
        let end = CallEnd::default();
        self.finish(status, &end);
        if let Some(release) = self.release(&end) {
            let told = self.replica.leases.release_now(release);
            // A store that is late is asked again all the same, and has its own deadline there.
            let _late = timeout(ASK_TIMEOUT, told).await;
        }
    }

    fn finish(&mut self, status: Status, end: &CallEnd) {
        self.ended = true;
        self.in_flight(-1);
        let since = |at: Instant| at.saturating_duration_since(self.dispatched);
        let observed_rank = end.observed_rank.map(|(rank, _)| rank);
        let outcome = Outcome {
            status,
            // The first byte of an answer in one piece is its last, and says nothing of its prefill.
            ttft: self.first_chunk.filter(|_| self.streams).map(since),
            duration: self.first_chunk.map(|_| since(Instant::now())),
            observed_rank,
            usage: end.usage,
        };
        let id = self.decision.id;
        let replica = &self.replica;
        let waterfall = replica
            .mind
            .lock()
            .finish(id, &outcome, replica.clock.now());
        if let Some(waterfall) = &waterfall {
            replica.mismatch.see(&self.decision.model, waterfall);
            replica.metrics.ends.waterfall(waterfall);
        }
        let end = End { outcome, waterfall };
        replica.ledger.close(id, end);
    }

    /// What gives the lease back.
    fn release(&mut self, end: &CallEnd) -> Option<Release> {
        let key = self.lease.take()?;
        let target = self.decision.target()?.clone();
        let end = match self.first_chunk {
            Some(_) => affinity::TurnEnd::Served {
                held: self.held(&target, end),
            },
            None => affinity::TurnEnd::Unserved,
        };
        Some(Release {
            key,
            target,
            end,
            actor: self.replica.instance.clone(),
        })
    }

    /// Full-block tokens that the turn has left at its target: prompt and answer, but for the last token,
    /// which no engine has computed further.
    fn held(&self, target: &Target, end: &CallEnd) -> Tokens {
        let tokens = match end.usage {
            Some(usage) => (usage.prompt + usage.completion).saturating_sub(Tokens::new(1)),
            None => self.decision.request.isl,
        };
        let candidate = self.decision.candidate(target);
        candidate.map_or(Tokens::ZERO, |candidate| {
            let size = u64::from(candidate.block_size.get());
            Tokens::new(tokens.get() / size * size)
        })
    }

    fn in_flight(&self, change: i64) {
        if let Some(target) = self.decision.target() {
            let rank = target.dp_rank.to_string();
            let labels = [target.worker.as_str(), &rank];
            self.replica
                .metrics
                .inflight
                .with_label_values(&labels)
                .add(change);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Status::Cancelled, &CallEnd::default());
        }
    }
}
