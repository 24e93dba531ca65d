//! One turn, from its client's sending to its last token.

use std::collections::{BTreeMap, HashMap};

use affinity::{ConversationKey, Mode, TurnEnd};
use domain::{
    DecisionId, DpRank, Endpoint, ModelName, SequenceHash, Target, TenantId, Timestamp, Tokens,
};
use engine_model::RequestId;
use placement::Hint;
use routing::{BindingAction, Decision, Lead, OverlapView, Status, conversation_hash};

use super::World;
use super::bindings::Answer;
use super::passes::failed;
use super::routers::lasting;
use super::sessions::Turn;

/// Targets that one request is tried at before its client is told, as `router-api` does.
const MAX_ATTEMPTS: u32 = 3;

/// What conversations are called.
pub(super) struct Names {
    tenants: BTreeMap<u32, TenantId>,
    model: ModelName,
    /// By tenant and conversation. Never iterated.
    keys: HashMap<(u32, u32), ConversationKey>,
}

/// Whose turns follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Home {
    Conversation(u32),
    Session(usize),
}

/// A turn before it is placed.
pub(super) struct Attempt {
    pub(super) turn: Turn,
    pub(super) router: usize,
    pub(super) sent: Timestamp,
    pub(super) key: Option<ConversationKey>,
    pub(super) lead: Option<Lead>,
    pub(super) tried: Vec<Target>,
    pub(super) failures: u32,
}

/// What came of an attempt.
enum Tried {
    Sent,
    /// The target did not take it.
    Refused(Attempt),
    /// There is no target.
    NoPlace(Attempt),
}

/// A turn at its engine.
pub(super) struct Open {
    pub(super) attempt: Attempt,
    pub(super) decision: DecisionId,
    pub(super) place: (usize, DpRank),
    /// Where it runs, as its routers know it.
    pub(super) target: Target,
    /// Whether its conversation's binding waits for its end.
    pub(super) leased: bool,
    pub(super) dispatched: Timestamp,
    pub(super) uncached: Tokens,
    pub(super) cached: Tokens,
    pub(super) first_token: Option<Timestamp>,
    pub(super) counts: bool,
}

impl Names {
    pub(super) fn new(model: &ModelName) -> Self {
        Self {
            tenants: BTreeMap::new(),
            model: model.clone(),
            keys: HashMap::new(),
        }
    }

    fn tenant(&mut self, tenant: u32) -> TenantId {
        let named = self.tenants.entry(tenant).or_insert_with(|| {
            TenantId::new(&format!("tenant-{tenant}")).expect("a short plain name")
        });
        named.clone()
    }

    fn key(&mut self, tenant: u32, conversation: u32) -> ConversationKey {
        if let Some(key) = self.keys.get(&(tenant, conversation)) {
            return key.clone();
        }
        let key = ConversationKey {
            tenant: self.tenant(tenant),
            model: self.model.clone(),
            conversation: format!("conversation-{conversation}")
                .parse()
                .expect("a short plain name"),
        };
        self.keys.insert((tenant, conversation), key.clone());
        key
    }
}

impl Open {
    /// Where it is.
    pub(super) const fn worker(&self) -> usize {
        self.place.0
    }
}

impl World<'_> {
    /// A client sends a turn.
    pub(super) fn begin(&mut self, turn: Turn, now: Timestamp) {
        let router = self.routers.rotate();
        let session = &self.workload.sessions[turn.session];
        let asked = &session.turns[turn.turn];
        let size = self.workload.block_size;
        let (key, lead) = if let Some(conversation) = session.conversation {
            (Some(self.names.key(session.tenant, conversation)), None)
        } else {
            let lasting = lasting(asked.prompt(size), asked.isl, size);
            let (origin, lead) = self.routers.descent(router, lasting, size, now);
            let key = origin.map(|it| ConversationKey {
                tenant: self.names.tenant(session.tenant),
                model: self.model.clone(),
                conversation: it.id(),
            });
            (key, lead)
        };
        let attempt = Attempt {
            turn,
            router,
            sent: now,
            key,
            lead,
            tried: Vec::new(),
            failures: 0,
        };
        self.place(attempt, now);
    }

    /// Tries targets until one takes the request.
    pub(super) fn place(&mut self, mut attempt: Attempt, now: Timestamp) {
        while attempt.failures < MAX_ATTEMPTS {
            match self.attempt(attempt, now) {
                Tried::Sent => return,
                Tried::Refused(refused) => attempt = refused,
                Tried::NoPlace(hopeless) => {
                    attempt = hopeless;
                    break;
                }
            }
        }
        self.measure.errors += u64::from(self.measure.counts(attempt.sent));
        self.end_turn(attempt.turn, now);
    }

    /// Tries one target.
    fn attempt(&mut self, mut attempt: Attempt, now: Timestamp) -> Tried {
        let session = &self.workload.sessions[attempt.turn.session];
        let asked = &session.turns[attempt.turn.turn];
        let prompt = asked.prompt(self.workload.block_size);
        let first = attempt.failures == 0;
        let again = !first && self.measure.counts(attempt.sent);
        self.measure.retries += u64::from(again);
        let view = self.setting.index.then(|| {
            self.index
                .look_up(session.tenant, prompt, first, &self.feed, now)
        });
        let answer = self.ask_store(&attempt, now);
        self.requests += 1;
        let id = self.requests;
        let request = self.request(&attempt, &answer, prompt, now);
        let decided = self.decide(&request, view, &answer, attempt.router, now);
        let Some(mut decision) = decided else {
            return Tried::NoPlace(attempt);
        };
        let leased = match &attempt.key {
            Some(key) => self.bind(
                &key.clone(),
                &request,
                &mut decision,
                &answer,
                &attempt,
                now,
            ),
            None => false,
        };
        if let (None, Some(target)) = (&attempt.key, decision.reserved_at()) {
            let lasting = lasting(prompt, asked.isl, self.workload.block_size);
            self.routers.ran(attempt.router, lasting, target, now);
        }
        match self.dispatch(id, &attempt, &decision) {
            Ok(place) => {
                self.open(attempt, &decision, place, leased, now);
                Tried::Sent
            }
            Err(refusal) => {
                let target = target_of(&decision);
                self.fail(&mut attempt, (decision.id, &target), leased, refusal, now);
                match refusal {
                    Status::Invalid => Tried::NoPlace(attempt),
                    _ => Tried::Refused(attempt),
                }
            }
        }
    }

    /// An engine has taken it.
    fn open(
        &mut self,
        attempt: Attempt,
        decision: &Decision,
        place: (usize, DpRank),
        leased: bool,
        now: Timestamp,
    ) {
        let Turn { session, turn } = attempt.turn;
        let isl = self.workload.sessions[session].turns[turn].isl;
        let target = Target {
            dp_rank: place.1,
            ..target_of(decision)
        };
        let held = decision.held_at(&target).unwrap_or_default();
        let uncached = decision.uncached.unwrap_or(isl.saturating_sub(held));
        self.measure.sent(place, uncached, now);
        let open = Open {
            decision: decision.id,
            place,
            target,
            leased,
            dispatched: now,
            uncached,
            cached: Tokens::ZERO,
            first_token: None,
            counts: self.measure.counts(attempt.sent),
            attempt,
        };
        self.note_kept(&open);
        self.open.insert(self.requests, open);
        self.start_pass(place.0, now);
        self.wake(now);
    }

    fn ask_store(&mut self, attempt: &Attempt, now: Timestamp) -> Answer {
        let mind = &self.routers.of(attempt.router).mind;
        match &attempt.key {
            Some(key) if mind.config().affinity(&self.model) != Mode::Off => {
                self.bindings.ask(key, attempt.router, now)
            }
            _ => Answer::NotAsked,
        }
    }

    fn request(
        &mut self,
        attempt: &Attempt,
        answer: &Answer,
        prompt: &[SequenceHash],
        now: Timestamp,
    ) -> routing::Request {
        let Turn { session, turn } = attempt.turn;
        let session = &self.workload.sessions[session];
        let hint = match (&attempt.key, answer) {
            (_, it) if it.binding().is_some() => None,
            (Some(key), Answer::Silent(_)) => Some(Hint::Home(conversation_hash(key))),
            _ => session.parent.and_then(|it| self.near(it, now)),
        };
        routing::Request {
            id: DecisionId::new(u128::from(self.requests)),
            model: self.model.clone(),
            endpoint: Endpoint::Chat,
            isl: session.turns[turn].isl,
            hashes: vec![(self.workload.block_size, prompt.to_vec())],
            conversation: attempt.key.clone(),
            hint,
            lead: attempt.lead.clone(),
            tried: attempt.tried.clone(),
            no_adapter: Vec::new(),
            pin: None,
        }
    }

    /// Where the session runs that another was started from.
    fn near(&mut self, parent: usize, now: Timestamp) -> Option<Hint> {
        let session = self.workload.sessions.get(parent)?;
        let key = self.names.key(session.tenant, session.conversation?);
        let bound = self.bindings.bound(&key, now)?;
        Some(Hint::Near(bound.target.clone()))
    }

    fn decide(
        &mut self,
        request: &routing::Request,
        view: Option<OverlapView>,
        answer: &Answer,
        router: usize,
        now: Timestamp,
    ) -> Option<Decision> {
        // Any fixed odd constant: neighbouring requests must not draw alike.
        let seed = self.setting.seed ^ self.requests.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mind = &mut self.routers.of(router).mind;
        let views = view.as_ref().map(std::slice::from_ref);
        let decided = mind.decide(request, views, answer.binding(), now, seed);
        decided.ok()
    }

    /// Does with the binding what the decision says, and follows whoever was first. Whether the turn's end is
    /// waited for.
    fn bind(
        &mut self,
        key: &ConversationKey,
        request: &routing::Request,
        decision: &mut Decision,
        answer: &Answer,
        attempt: &Attempt,
        now: Timestamp,
    ) -> bool {
        if let Answer::Silent(_) = answer {
            // A store that did not answer is not written to either.
            decision.binding = BindingAction::None;
            self.bindings.counts.unasked += 1;
        }
        let Some(target) = decision.reserved_at().cloned() else {
            return false;
        };
        let replica = self.routers.of(attempt.router);
        let actor = replica.name.clone();
        let bound = match (decision.binding, answer.binding()) {
            (BindingAction::None, _) => return false,
            (BindingAction::Excursion, Some(bound)) => {
                self.bindings.counts.excursions += 1;
                self.bindings.acquire(key, &bound.target, &actor, now)
            }
            (BindingAction::Create | BindingAction::Keep | BindingAction::Excursion, _) => {
                self.bindings.acquire(key, &target, &actor, now)
            }
            (BindingAction::Rebind(reason), _) => {
                self.bindings.rebind(key, &target, reason, &actor, now)
            }
        };
        self.routers.hear(key, now);
        let beside = decision.binding == BindingAction::Excursion;
        if beside || bound.target == target {
            return true;
        }
        let mind = &mut self.routers.of(attempt.router).mind;
        *decision = mind.follow(decision, request, &bound, now);
        let usable = decision.reserved_at() == Some(&bound.target);
        if usable {
            self.bindings.counts.followed += 1;
        } else {
            let end = TurnEnd::Unserved;
            self.bindings
                .release(key, &target, end, &actor, attempt.router, now);
        }
        usable
    }

    /// Hands the request to its engine; where it is then, or what its router is answered.
    fn dispatch(
        &mut self,
        id: u64,
        attempt: &Attempt,
        decision: &Decision,
    ) -> Result<(usize, DpRank), Status> {
        let worker = self.engines.number(decision.place.worker());
        let worker = worker.filter(|it| self.engines.is_up(*it));
        let worker = worker.ok_or(Status::Unreachable)?;
        let Turn { session, turn } = attempt.turn;
        let asked = &self.workload.sessions[session].turns[turn];
        let request = engine_model::Request {
            id: RequestId::new(id),
            isl: asked.isl,
            osl: asked.osl,
            chain: asked.keeps(self.workload.block_size).into(),
            rank: decision.target().map(|it| it.dp_rank),
        };
        // What one rank has no room for, none has.
        let rank = self.engines.submit(worker, request);
        Ok((worker, rank.ok_or(Status::Invalid)?))
    }

    /// A request has failed before its first token, and will be tried elsewhere.
    pub(super) fn fail(
        &mut self,
        attempt: &mut Attempt,
        (decision, target): (DecisionId, &Target),
        leased: bool,
        status: Status,
        now: Timestamp,
    ) {
        let mind = &mut self.routers.of(attempt.router).mind;
        mind.finish(decision, &failed(status), now);
        self.release(attempt, target, leased, TurnEnd::Unserved, now);
        attempt.tried.push(target.clone());
        attempt.failures += 1;
    }

    fn note_kept(&mut self, open: &Open) {
        let session = open.attempt.turn.session;
        let home = match self.workload.sessions[session].conversation {
            Some(conversation) => Home::Conversation(conversation),
            None => Home::Session(session),
        };
        let before = self.homes.insert(home, open.place);
        let kept = open.counts && before == Some(open.place);
        self.measure.kept += u64::from(kept);
    }
}

/// The target of a decision; where its engine chooses the rank, one of its worker's.
fn target_of(decision: &Decision) -> Target {
    let worker = decision.place.worker();
    let mut candidates = decision.snapshot.candidates.iter();
    let first = || {
        let of_worker = candidates.find(|it| it.target.worker == *worker);
        of_worker
            .expect("a place is taken from the candidates")
            .target
            .clone()
    };
    decision.target().cloned().unwrap_or_else(first)
}
