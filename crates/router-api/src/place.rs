//! Finding a place for a request, and holding it to its conversation's binding.

use std::sync::Arc;
use std::time::Duration;

use affinity::ConversationKey;
use contracts::rpc::{Acquire, Bound, CallError, Move};
use domain::{DecisionId, Target, Tokens, WorkerId};
use placement::{Hint, Place};
use routing::admission::Standing;
use routing::{
    BindingAction, Decision, Degraded, NoTarget, Reason, Request, Status, conversation_hash,
};
use tokio::time::Instant;

use crate::admission::Waiter;
use crate::error::ApiError;
use crate::evidence::Tail;
use crate::intake::{Blocks, Intake};
use crate::ledger::Entry;
use crate::replica::{BindingAnswer, Known, Replica};
use crate::turn::{Kind, Turn};

/// One request on its way to a place.
pub(crate) struct Placing<'a> {
    pub(crate) replica: &'a Arc<Replica>,
    pub(crate) intake: &'a Intake,
    pub(crate) blocks: &'a Blocks,
    pub(crate) known: Known,
    /// How long it has waited for a target.
    queued: Duration,
    /// Its place in the queue, until it is placed.
    waiter: Option<Waiter>,
    /// Where it has failed already.
    pub(crate) tried: Vec<Target>,
    /// The workers to which it has found no way.
    pub(crate) no_adapter: Vec<WorkerId>,
    /// The attempt that failed last.
    pub(crate) retry_of: Option<DecisionId>,
}

/// What became of what was to be written of a binding.
#[derive(PartialEq, Eq)]
enum Written {
    Nothing,
    Yes,
    /// The store did not take it.
    No,
}

impl<'a> Placing<'a> {
    /// A request of which this is known, before it goes anywhere.
    fn new(
        replica: &'a Arc<Replica>,
        intake: &'a Intake,
        blocks: &'a Blocks,
        known: Known,
    ) -> Self {
        Self {
            replica,
            intake,
            blocks,
            known,
            queued: Duration::ZERO,
            waiter: None,
            tried: Vec::new(),
            no_adapter: Vec::new(),
            retry_of: None,
        }
    }

    /// A request that may go: it has waited, where every target was past its limit, until one was not, and what others
    /// know has been asked anew then. The index records it once, and not before it goes if it has to wait: one that is
    /// refused has not carried its prompt anywhere.
    pub(crate) async fn admitted(
        replica: &'a Arc<Replica>,
        intake: &'a Intake,
        blocks: &'a Blocks,
    ) -> Result<Self, ApiError> {
        let is_recorded = !replica.is_waited(intake);
        let known = replica.ask(intake, blocks, is_recorded).await;
        let mut placing = Self::new(replica, intake, blocks, known);
        let waiter = replica.enqueue(intake, placing.uncached(), is_recorded)?;
        if let Some(mut waiter) = waiter {
            placing.queued = waiter.called().await?;
            placing.waiter = Some(waiter);
            let before = is_recorded.then_some(&placing.known);
            placing.known = replica.ask_again(intake, blocks, before).await;
        }
        Ok(placing)
    }

    /// A request that somebody else dispatches, or asks about: it does not wait, and is refused where it could not. Also
    /// whether [`Self::admitted`] would have waited. The index records those that are committed to.
    pub(crate) async fn routed(
        replica: &'a Arc<Replica>,
        intake: &'a Intake,
        blocks: &'a Blocks,
        is_committed: bool,
    ) -> Result<(Self, bool), ApiError> {
        let is_recorded = is_committed && !replica.is_waited(intake);
        let known = replica.ask(intake, blocks, is_recorded).await;
        let mut placing = Self::new(replica, intake, blocks, known);
        let would_wait = match replica.standing(intake, placing.uncached()) {
            Standing::Goes => false,
            Standing::Waits => true,
            Standing::Refused(refusal) => return Err(replica.admission.refused(refusal)),
        };
        if is_committed && !is_recorded {
            placing.known = replica.ask_again(intake, blocks, None).await;
        }
        Ok((placing, would_wait))
    }

    /// What has to be computed of it at least.
    fn uncached(&self) -> Tokens {
        let views = self.views().unwrap_or_default().iter();
        let held = views.flat_map(|view| {
            let groups = view.groups.iter();
            groups.map(|it| view.block_size.tokens(it.depths.disk))
        });
        let held = held.max().unwrap_or_default();
        self.blocks.isl.saturating_sub(held)
    }

    /// Decides, reserves, and binds or joins the binding. The turn gives all of it back when dropped.
    pub(crate) async fn place(&mut self) -> Result<Turn, ApiError> {
        let decided = self.decide();
        // From here on its reservation stands for it.
        self.waiter = None;
        let (request, mut turn) = decided?;
        if let Some(key) = &self.intake.conversation
            && self.bind(key, &request, &mut turn).await == Written::No
            && self.binding().is_none()
        {
            // It goes where its next turn will go too, with nothing to tell that this one has been.
            drop(turn);
            self.known.binding = self.replica.as_heard(key);
            turn = self.decide()?.1;
        }
        let silent = turn.decision.degraded.contains(&Degraded::NoAffinity);
        if silent && self.intake.tenant.fail_closed {
            let why = "the affinity store is silent, and this tenant is not served without it";
            return Err(ApiError::Unavailable {
                why: why.to_owned(),
            });
        }
        self.replica
            .remember_place(self.intake, self.blocks, &turn.decision);
        let entry = self.record(&turn.decision, true);
        turn.recorded();
        self.replica.records.decided(&entry);
        self.replica.shadow.decided(&turn.decision);
        Ok(turn)
    }

    /// Decides and leaves nothing: no binding, no reservation.
    pub(crate) fn preview(&self) -> Result<Arc<Decision>, ApiError> {
        let (request, seed) = self.request();
        let now = self.replica.clock.now();
        let router = self.replica.mind.lock();
        let decided = router.preview(&request, self.views(), self.binding(), now, seed);
        drop(router);
        let mut decision = decided.map_err(refused)?;
        self.note_silence(&mut decision);
        let decision = Arc::new(decision);
        self.record(&decision, false);
        Ok(decision)
    }

    /// The request has failed at the turn's place: gives the place back, leaves it out from now on, and asks
    /// again what its conversation is bound to.
    pub(crate) async fn failed(&mut self, turn: Turn, status: Status) {
        let decision = turn.decision.clone();
        turn.give_up(status).await;
        self.retry_of = Some(decision.id);
        let worker = decision.place.worker();
        let is_of_worker = |it: &Target| it.worker == *worker;
        let mut candidates = decision.snapshot.candidates.iter();
        // The numbers that a worker refuses may be all it has: after two of them others are asked first.
        let is_misnumbered = status == Status::RankRefused
            && self.tried.iter().any(is_of_worker)
            && candidates.any(|it| it.takes_new() && !is_of_worker(&it.target));
        match &decision.place {
            place if status == Status::NoAdapter => self.no_adapter.push(place.worker().clone()),
            Place::Target(target) if !is_misnumbered => self.tried.push(target.clone()),
            Place::Target(_) | Place::Worker { .. } => {
                let candidates = decision.snapshot.candidates.iter();
                let ranks = candidates.filter(|it| is_of_worker(&it.target));
                self.tried.extend(ranks.map(|it| it.target.clone()));
            }
        }
        self.known.binding = self.replica.ask_affinity(self.intake).await;
        self.replica.metrics.retries.inc();
    }

    /// The blocks of which only this request can leave the last at the decided place, if there are such.
    pub(crate) fn tail(&self, decision: &Decision) -> Option<Tail> {
        let mut candidates = decision.snapshot.candidates.iter();
        let candidate = candidates.find(|it| it.target.worker == *decision.place.worker())?;
        let size = candidate.block_size;
        let (_, hashes) = self.blocks.hashes.iter().find(|it| it.0 == size)?;
        let view = self.views()?.iter().find(|it| it.block_size == size)?;
        let known = view.ceiling.max(view.stored);
        Tail::new(self.intake.namespace(size), hashes, known)
    }

    fn request(&self) -> (Request, u64) {
        let (id, seed) = self.replica.ids.next();
        let request = Request {
            id,
            model: self.intake.model.clone(),
            endpoint: self.intake.endpoint,
            isl: self.blocks.isl,
            hashes: self.blocks.hashes.clone(),
            conversation: self.intake.conversation.clone(),
            hint: self.hint(),
            lead: self.intake.lead.clone(),
            tried: self.tried.clone(),
            no_adapter: self.no_adapter.clone(),
            pin: self.intake.pin.clone(),
        };
        (request, seed)
    }

    /// Where a conversation that is not bound yet would rather be.
    fn hint(&self) -> Option<Hint> {
        if self.binding().is_some() {
            return None;
        }
        let homeless = match &self.known.binding {
            BindingAnswer::Silent(_) => true,
            // Its last turns may have found nobody to write down where they went.
            BindingAnswer::Unbound => self.replica.bindings_fail(),
            BindingAnswer::NotAsked | BindingAnswer::Bound(_) => false,
        };
        if let Some(key) = self.intake.conversation.as_ref().filter(|_| homeless) {
            return Some(Hint::Home(conversation_hash(key)));
        }
        let parent = self.known.parent.clone().map(Hint::Near);
        parent.or(self.intake.bucket.map(Hint::Bucket))
    }

    fn decide(&self) -> Result<(Request, Turn), ApiError> {
        let (request, seed) = self.request();
        let began = Instant::now();
        let now = self.replica.clock.now();
        let mut router = self.replica.mind.lock();
        let decided = router.decide(&request, self.views(), self.binding(), now, seed);
        drop(router);
        let histogram = &self.replica.metrics.decision_seconds;
        histogram.observe(began.elapsed().as_secs_f64());
        let mut decision = decided.map_err(refused)?;
        self.note_silence(&mut decision);
        let asked = !matches!(self.known.binding, BindingAnswer::NotAsked);
        let kind = Kind {
            conversation: self.intake.conversation.clone().filter(|_| asked),
            tokens_known: !self.blocks.hashes.is_empty(),
            streams: self.intake.streams,
            queued: self.queued,
        };
        let turn = Turn::new(self.replica.clone(), decision, kind);
        Ok((request, turn))
    }

    fn views(&self) -> Option<&[routing::OverlapView]> {
        self.known.views.as_deref()
    }

    fn binding(&self) -> Option<&affinity::Binding> {
        match &self.known.binding {
            BindingAnswer::Bound(bound) => Some(&bound.binding),
            BindingAnswer::Silent(heard) => heard.as_deref(),
            BindingAnswer::NotAsked | BindingAnswer::Unbound => None,
        }
    }

    /// A store that did not answer is not written to either.
    fn note_silence(&self, decision: &mut Decision) {
        if let BindingAnswer::Silent(_) = self.known.binding {
            decision.binding = BindingAction::None;
            decision.degraded.push(Degraded::NoAffinity);
        }
    }

    /// Does with the binding what the decision says, and follows whoever was first.
    async fn bind(&self, key: &ConversationKey, request: &Request, turn: &mut Turn) -> Written {
        let Some(target) = turn.decision.reserved_at().cloned() else {
            return Written::Nothing;
        };
        let held = match (turn.decision.binding, self.binding()) {
            (BindingAction::None, _) => return Written::Nothing,
            (BindingAction::Excursion, Some(bound)) => self.acquire(key, &bound.target).await,
            (BindingAction::Create | BindingAction::Keep | BindingAction::Excursion, _) => {
                self.acquire(key, &target).await
            }
            (BindingAction::Rebind(reason), _) => self.rebind(key, &target, reason).await,
        };
        match held {
            Ok(bound) => {
                turn.took_lease(key);
                let beside = turn.decision.binding == BindingAction::Excursion;
                if !beside && bound.binding.target != target {
                    self.follow(&bound, request, turn);
                }
                Written::Yes
            }
            Err(_) => {
                let mut decision = Decision::clone(&turn.decision);
                decision.binding = BindingAction::None;
                decision.degraded.push(Degraded::NoAffinity);
                turn.decided_anew(decision);
                Written::No
            }
        }
    }

    fn follow(&self, winner: &Bound, request: &Request, turn: &mut Turn) {
        let now = self.replica.clock.now();
        let mut router = self.replica.mind.lock();
        let followed = router.follow(&turn.decision, request, &winner.binding, now);
        drop(router);
        let usable = followed.reserved_at() == Some(&winner.binding.target);
        if !usable {
            turn.return_lease();
        }
        turn.decided_anew(followed);
    }

    async fn acquire(&self, key: &ConversationKey, proposed: &Target) -> Result<Bound, CallError> {
        let owner = self.replica.mind.lock().owner(&proposed.worker);
        let acquired = self.replica.affinity.acquire(Acquire {
            key: key.clone(),
            proposed: proposed.clone(),
            owner,
            actor: self.replica.instance.clone(),
        });
        self.replica.written(acquired).await
    }

    async fn rebind(
        &self,
        key: &ConversationKey,
        to: &Target,
        reason: affinity::MoveReason,
    ) -> Result<Bound, CallError> {
        let BindingAnswer::Bound(seen) = &self.known.binding else {
            return self.acquire(key, to).await;
        };
        let moved = self.replica.affinity.rebind(Move {
            key: key.clone(),
            at: seen.revision,
            to: to.clone(),
            reason,
            actor: self.replica.instance.clone(),
        });
        match self.replica.written(moved).await {
            // Somebody else was first: join what it has become.
            Err(CallError::FailedPrecondition { .. }) => self.acquire(key, to).await,
            Ok(bound) => {
                self.replica.metrics.rebinds.inc();
                Ok(bound)
            }
            Err(error) => Err(error),
        }
    }

    fn record(&self, decision: &Arc<Decision>, committed: bool) -> Entry {
        let tokens_known = !self.blocks.hashes.is_empty();
        for missing in &decision.degraded {
            let name = degraded_name(*missing, tokens_known);
            let counter = self.replica.metrics.degraded.with_label_values(&[name]);
            counter.inc();
        }
        let unasked = decision.degraded.contains(&Degraded::NoAffinity);
        if decision.binding == BindingAction::Excursion
            || unasked && self.intake.conversation.is_some() && decision.reason != Reason::Bound
        {
            self.replica.metrics.excursions.inc();
        }
        let entry = Entry {
            decision: decision.clone(),
            conversation: self.intake.conversation.clone(),
            tokens_known,
            committed,
            queued: self.queued,
            retry_of: self.retry_of,
            judged: None,
            end: None,
        };
        self.replica.ledger.open(entry.clone());
        entry
    }
}

/// What a decision had to do without. Without tokens the index cannot even be asked.
pub(crate) fn degraded_name(missing: Degraded, tokens_known: bool) -> &'static str {
    match missing {
        Degraded::NoIndex if !tokens_known => "no_tokens",
        Degraded::NoIndex => "no_index",
        Degraded::PartialIndex => "partial_index",
        Degraded::NoAffinity => "no_affinity",
        Degraded::BindingUnusable => "binding_unusable",
        Degraded::NoEvents => "no_events",
        Degraded::RankNotControlled => "rank_not_controlled",
        Degraded::RankUntrusted => "rank_untrusted",
    }
}

fn refused(why: NoTarget) -> ApiError {
    match why {
        NoTarget::UnknownModel { .. } | NoTarget::NoneReady { .. } | NoTarget::AllTried { .. } => {
            ApiError::NoTarget {
                why: why.to_string(),
            }
        }
        NoTarget::InvalidPin { .. } => ApiError::invalid(why.to_string()),
    }
}
