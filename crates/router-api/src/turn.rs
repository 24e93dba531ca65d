//! One attempt at one request, from its decision to its end. Whatever happens to it, its reservation and its
//! lease are given back: the last resort is `drop`.

use std::sync::Arc;
use std::time::Duration;

use affinity::{ConversationKey, Evidence};
use contracts::rpc::{CallEnd, Confirm, Release};
use domain::{DpRank, Target, Tokens};
use placement::Place;
use routing::{Decision, Outcome, Seen, Status};
use tokio::time::{Instant, timeout};

use crate::evidence::{Tail, Watch};
use crate::ledger::End;
use crate::place::degraded_name;
use crate::replica::{ASK_TIMEOUT, Replica};
use crate::run::Run;
use crate::tenant::Tenant;

/// An index further behind the log than this may not know yet what a rank has announced.
const LEVEL: Duration = Duration::from_secs(1);

/// What a turn needs to know of its request.
pub(crate) struct Kind {
    /// The conversation, if it may be bound to where the turn runs.
    pub(crate) conversation: Option<ConversationKey>,
    pub(crate) tokens_known: bool,
    pub(crate) streams: bool,
    pub(crate) queued: Duration,
}

/// An attempt under way.
pub(crate) struct Turn {
    replica: Arc<Replica>,
    pub(crate) decision: Arc<Decision>,
    /// The conversation whose lease is held.
    lease: Option<ConversationKey>,
    /// The conversation, if it may be bound to where the turn runs.
    conversation: Option<ConversationKey>,
    /// A block that only this turn has.
    tail: Option<Tail>,
    tokens_known: bool,
    streams: bool,
    /// How long its request has waited for a target.
    pub(crate) queued: Duration,
    dispatched: Instant,
    first_chunk: Option<Instant>,
    /// What whoever dispatched it has measured.
    measured: Measured,
    /// Whether one tenant among several says what became of it: that moves its conversation and judges nothing that
    /// others use too.
    is_hearsay: bool,
    /// Whether its decision stands and is recorded, so that its outcome is too.
    is_recorded: bool,
    ended: bool,
}

/// Times from the dispatch on, where somebody else measured them.
#[derive(Clone, Copy, Default)]
struct Measured {
    ttft: Option<Duration>,
    duration: Option<Duration>,
}

impl Turn {
    /// Takes over a decision.
    pub(crate) fn new(replica: Arc<Replica>, decision: Decision, kind: Kind) -> Self {
        let Kind {
            conversation,
            tokens_known,
            streams,
            queued,
        } = kind;
        let turn = Self {
            replica,
            decision: Arc::new(decision),
            lease: None,
            conversation,
            tail: None,
            tokens_known,
            streams,
            queued,
            dispatched: Instant::now(),
            first_chunk: None,
            measured: Measured::default(),
            is_hearsay: false,
            is_recorded: false,
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

    /// The decision stands: it is recorded, and its outcome will be.
    pub(crate) fn recorded(&mut self) {
        self.is_recorded = true;
    }

    /// What the decision had to do without.
    pub(crate) fn degraded(&self) -> Vec<&'static str> {
        let missing = self.decision.degraded.iter();
        missing
            .map(|it| degraded_name(*it, self.tokens_known))
            .collect()
    }

    /// The request is being sent; with `tail` it can be seen where it runs.
    pub(crate) fn dispatched(&mut self, received: Instant, tail: Option<Tail>) {
        self.tail = tail;
        self.dispatched = Instant::now();
        // What it waited in the queue is told apart.
        let added = self
            .dispatched
            .saturating_duration_since(received + self.queued);
        let histogram = &self.replica.metrics.added_latency_seconds;
        histogram.observe(added.as_secs_f64());
    }

    /// Somebody else sends it, and measures what there is to measure: reports of it come late.
    pub(crate) fn dispatched_elsewhere(
        &mut self,
        received: Instant,
        tail: Option<Tail>,
        tenant: &Tenant,
    ) {
        self.is_hearsay = tenant.is_named();
        self.dispatched(received, tail.filter(|_| !tenant.is_named()));
        self.streams = false;
    }

    /// Whoever sent it says how long it took to the first token and to the end.
    pub(crate) fn measured_elsewhere(
        &mut self,
        ttft: Option<Duration>,
        duration: Option<Duration>,
    ) {
        if let (None, Some(ttft)) = (self.measured.ttft, ttft) {
            self.replica.metrics.ends.first_byte(ttft);
        }
        self.measured.ttft = self.measured.ttft.or(ttft);
        self.measured.duration = self.measured.duration.or(duration);
    }

    /// Whether the decision was made from the prompt's tokens, not from its length in bytes.
    pub(crate) const fn tokens_known(&self) -> bool {
        self.tokens_known
    }

    /// Whether anything of its answer has come.
    pub(crate) const fn has_first_chunk(&self) -> bool {
        self.first_chunk.is_some()
    }

    /// It is sent once more, because nothing has taken it.
    pub(crate) fn sent_again(&mut self) {
        self.dispatched = Instant::now();
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
        if let (Some(key), Some(target)) = (&self.lease, self.decision.reserved_at()) {
            // Where the engine chooses, its worker is confirmed and no rank.
            let evidence = match self.decision.target() {
                Some(_) => Evidence::Asked,
                None => Evidence::None,
            };
            replica.leases.confirm(Confirm {
                key: key.clone(),
                asked: target.clone(),
                observed: target.clone(),
                evidence,
                actor: replica.instance.clone(),
            });
        }
    }

    /// It has ended.
    pub(crate) fn end(&mut self, status: Status, end: &CallEnd) {
        self.finish(status, end);
        let named = end.observed_rank.map(|(rank, _)| rank);
        let watch = self.watch(status, end, named);
        if let (Some(watch), Some(rank)) = (&watch, named)
            && self.decision.target().is_some()
            && !self.is_hearsay
        {
            self.replica.saw(&watch.run, Seen::Named(rank));
        }
        if let (Some(watch), Some(rank), Some(_)) = (&watch, named, &self.lease)
            && (self.decision.target().is_none() || self.is_hearsay)
        {
            self.replica
                .confirm_rank(&watch.run, rank, Evidence::Answer);
        }
        if let Some(release) = self.release(end) {
            self.replica.leases.release(release);
        }
        // Of a rank that was asked for and named only its announcement is left to be seen.
        let open = |it: &Watch| {
            it.named.is_none() || it.tail.is_some() || self.decision.target().is_none()
        };
        if let Some(watch) = watch.filter(open).filter(|_| !self.is_hearsay) {
            self.replica.evidence.watch(watch);
        }
    }

    /// What can show where the turn ran, if anything can and the turn was served.
    fn watch(&self, status: Status, end: &CallEnd, named: Option<DpRank>) -> Option<Watch> {
        let first_token = self.first_chunk.filter(|_| status == Status::Served)?;
        let conversation = match self.decision.place {
            Place::Target(_) => &self.lease,
            Place::Worker { .. } if self.conversation.is_none() => return None,
            Place::Worker { .. } => &self.conversation,
        };
        if named.is_none() && self.tail.is_none() {
            return None;
        }
        Some(Watch {
            run: Run {
                decision: self.decision.clone(),
                conversation: conversation.clone(),
                held: self.held(end),
            },
            named,
            tail: self.tail.clone(),
            first_token,
        })
    }

    /// It has failed before its first byte and another target is to be tried: resolves when the store knows
    /// that the lease is given back, or does not answer.
    pub(crate) async fn give_up(mut self, status: Status) {
        let end = CallEnd::default();
        self.finish(status, &end);
        if status == Status::RankRefused && !self.is_hearsay {
            let run = Run {
                decision: self.decision.clone(),
                conversation: None,
                held: Tokens::ZERO,
            };
            self.replica.saw(&run, Seen::Refusal);
        }
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
            ttft: self
                .measured
                .ttft
                .or(self.first_chunk.filter(|_| self.streams).map(since)),
            duration: self
                .measured
                .duration
                .or(self.first_chunk.map(|_| since(Instant::now()))),
            observed_rank,
            usage: end.usage.map(|it| self.replica.metrics.ends.believed(it)),
        };
        let id = self.decision.id;
        let replica = &self.replica;
        let learnt = self.learnt(&outcome);
        let now = replica.clock.now();
        let waterfall = replica.mind.lock().finish(id, &learnt, now);
        if !self.is_hearsay {
            self.notice_silence(&outcome);
        }
        if let Some(waterfall) = &waterfall {
            replica.mismatch.see(&self.decision.model, waterfall);
            replica.metrics.ends.waterfall(waterfall);
        }
        let end = End { outcome, waterfall };
        replica.ledger.close(&self.decision, end, now);
        if self.is_recorded {
            replica.records.ended(&self.decision, end, now);
        }
    }

    /// What others' requests may be placed by: of hearsay neither a failure nor how fast a worker is.
    fn learnt(&self, outcome: &Outcome) -> Outcome {
        if !self.is_hearsay {
            return *outcome;
        }
        Outcome {
            status: match outcome.status {
                Status::Served => Status::Served,
                _ => Status::Cancelled,
            },
            ttft: None,
            ..*outcome
        }
    }

    /// An engine that finds more in a rank's cache than the index knows, while blocks of the turn before are
    /// overdue there, does not announce what that rank holds.
    fn notice_silence(&self, outcome: &Outcome) {
        let (Some(target), Some(key)) = (self.decision.target(), &self.lease) else {
            return;
        };
        let ran = Target {
            dp_rank: outcome.observed_rank.unwrap_or(target.dp_rank),
            ..target.clone()
        };
        let (Some(candidate), Some(cached)) = (
            self.decision.candidate(&ran),
            outcome.usage.and_then(|it| it.cached),
        ) else {
            return;
        };
        let known = candidate.held.disk + candidate.block_size.tokens(1);
        let level = self.decision.index_age.is_some_and(|age| age <= LEVEL);
        let heard = level && !self.replica.writes_fail();
        if known <= cached && heard && self.replica.evidence.is_overdue(key, &ran) {
            let run = Run {
                decision: self.decision.clone(),
                conversation: None,
                held: Tokens::ZERO,
            };
            match outcome.observed_rank {
                Some(ran) => self.replica.saw_announcement(&run, ran, Seen::Silence),
                None => self.replica.saw(&run, Seen::Silence),
            }
        }
    }

    /// What gives the lease back.
    fn release(&mut self, end: &CallEnd) -> Option<Release> {
        let key = self.lease.take()?;
        let asked = self.decision.reserved_at()?;
        let ran = end.observed_rank.map_or(asked.dp_rank, |(rank, _)| rank);
        let ran = Target {
            dp_rank: ran,
            ..asked.clone()
        };
        // A rank that is none of the worker's is no place to be bound to.
        let known = self.decision.candidate(&ran).is_some();
        let target = if known { ran } else { asked.clone() };
        let end = match self.first_chunk {
            Some(_) => affinity::TurnEnd::Served {
                held: self.held(end),
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

    /// Full-block tokens that the turn has left where it ran: prompt and answer, but for the last token, which
    /// no engine has computed further.
    fn held(&self, end: &CallEnd) -> Tokens {
        let tokens = match end.usage {
            Some(usage) => (usage.prompt + usage.completion).saturating_sub(Tokens::new(1)),
            None => self.decision.request.isl,
        };
        let worker = self.decision.place.worker();
        let mut candidates = self.decision.snapshot.candidates.iter();
        let candidate = candidates.find(|it| it.target.worker == *worker);
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
