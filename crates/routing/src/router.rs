//! The router's state and its inputs.

mod carry;
mod decide;
mod end;
mod room;
mod steer;

use std::collections::{BTreeSet, HashMap, VecDeque};

use affinity::Owner;
use domain::{
    BlockSize, DecisionId, DpRank, Drain, Epoch, InstanceId, ModelName, RankLoad,
    ReservationChange, Target, TargetState, Timestamp, Tokens, Worker, WorkerId,
};
use placement::{BoundTurn, Obligations, Policy, Reservation, Reservations};

use crate::carriers::Carriers;
use crate::drains::{Drained, Drains};
use crate::fleet::Fleet;
use crate::learnt::Mean;
use crate::open::Open;
use crate::presumed::Presumed;
use crate::tally::Tallies;
use crate::truth::{Finding, RankTruth};
use crate::{Config, RankSourceError, RankSources};

/// Requests on their way at one router: beyond, outcomes are no longer matched to decisions.
const MAX_OPEN: usize = 262_144;
/// Changes kept for peers while nobody takes them: several seconds at 10,000 requests a second.
const MAX_CHANGES: usize = 65_536;
/// The mean of uncached tokens before any request has been seen.
const FIRST_MEAN_MISS: f64 = 1_000.0;
/// The share of cached tokens wanted again before any request has been seen.
const FIRST_REUSE: f64 = 0.5;

/// One router replica's mind.
#[derive(Debug)]
pub struct Router {
    instance: InstanceId,
    config: Config,
    fleet: Fleet,
    reservations: Reservations,
    /// By model.
    obligations: HashMap<ModelName, Obligations>,
    presumed: Presumed,
    tallies: Tallies,
    carriers: Carriers,
    truth: RankTruth,
    open: HashMap<DecisionId, Open>,
    turns: HashMap<ModelName, u64>,
    mean_miss: Mean,
    reuse: Mean,
    changes: VecDeque<ReservationChange>,
    counters: Counters,
}

/// What was left undone because a bound was reached, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reservations not made because the book was full.
    pub reservations_refused: u64,
    /// Decisions whose outcome will not be recognised because too many are open.
    pub decisions_untracked: u64,
    /// Changes dropped because nobody took them.
    pub changes_dropped: u64,
    /// Reservations that ended by their lease.
    pub reservations_expired: u64,
    /// Reservations of peers that ended because their rank was idle.
    pub reservations_reconciled: u64,
}

impl Router {
    /// A router that knows no worker yet. `instance` tells its reservations from its peers'.
    pub fn new(instance: InstanceId, config: Config) -> Self {
        let mut tallies = Tallies::default();
        tallies.keep_for(config.policy);
        Self {
            instance,
            tallies,
            config,
            fleet: Fleet::default(),
            reservations: Reservations::default(),
            obligations: HashMap::new(),
            presumed: Presumed::default(),
            carriers: Carriers::default(),
            truth: RankTruth::default(),
            open: HashMap::new(),
            turns: HashMap::new(),
            mean_miss: Mean::starting_at(FIRST_MEAN_MISS),
            reuse: Mean::starting_at(FIRST_REUSE),
            changes: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// From now on counts also what another policy asks for: one that is asked what it would have decided.
    pub fn keep_for(&mut self, policy: Policy) {
        self.tallies.keep_for(policy);
    }

    /// Its settings.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What was left undone because a bound was reached.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Registers a worker, or renews its registration.
    pub fn set_worker(&mut self, worker: Worker) {
        self.fleet.set_worker(worker, &self.config);
    }

    /// Somebody has written into the fleet. Registrations are judged as of the last word: while nothing is heard, as
    /// where the bus is away, none ends.
    pub fn hear_fleet(&mut self, now: Timestamp) {
        self.fleet.heard.hear(now);
    }

    /// Whether a worker's registration is live.
    pub fn is_registered(&self, worker: &Worker, now: Timestamp) -> bool {
        self.fleet.is_registered(worker, now)
    }

    /// Forgets a worker. Requests on their way to it keep their records.
    pub fn remove_worker(&mut self, worker: &WorkerId) -> Option<Worker> {
        self.fleet.remove_worker(worker)
    }

    /// Sets a worker's incarnation, over what its registration says, also before it registers.
    pub fn set_epoch(&mut self, worker: &WorkerId, epoch: Epoch) {
        self.fleet.set_epoch(worker, epoch);
    }

    /// All that operators drain. Holds over incarnations, and before a worker registers.
    pub fn set_drains(&mut self, drained: impl IntoIterator<Item = Drain>) {
        self.fleet.drains = Drains::new(drained);
    }

    /// Sets who decides the ranks of which models. A worker that cannot do it is left out: see
    /// [`Router::refusal`].
    pub fn set_rank_sources(&mut self, sources: RankSources) {
        self.fleet.sources = sources;
    }

    /// Who decides the ranks of a worker.
    pub fn owner(&self, worker: &WorkerId) -> Owner {
        self.fleet.owner(worker)
    }

    /// Why a worker is left out, if it is.
    pub fn refusal(&self, worker: &Worker) -> Option<RankSourceError> {
        self.fleet.sources.refusal(worker)
    }

    /// All that is drained, by worker.
    pub fn drains(&self) -> impl Iterator<Item = &Drain> {
        self.fleet.drains.all()
    }

    /// What of a worker is drained.
    pub fn drained(&self, worker: &WorkerId) -> Option<&Drained> {
        self.fleet.drains.of(worker)
    }

    /// The state of a worker's rank, without what the index says of it.
    pub fn state(&self, worker: &Worker, dp_rank: DpRank) -> TargetState {
        self.fleet.state(worker, dp_rank)
    }

    /// Takes in a worker's gauges. Those of an unknown worker or rank are ignored.
    ///
    /// Where a rank was idle, peers' reservations from before are over, although their end was not heard of. Its own
    /// requests this router knows better than a gauge.
    pub fn set_load(&mut self, worker: &WorkerId, ranks: &[RankLoad]) {
        self.fleet.set_load(worker, ranks, &self.reservations);
        let Some(member) = self.fleet.worker(worker) else {
            return;
        };
        let epoch = self.fleet.epoch(member);
        let idle = |it: &&RankLoad| it.running == 0 && it.waiting == 0 && member.owns(it.dp_rank);
        for load in ranks.iter().filter(idle) {
            let target = Target {
                worker: worker.clone(),
                epoch,
                dp_rank: load.dp_rank,
            };
            let ended = self
                .reservations
                .reconcile(&target, load.at, |it| self.open.contains_key(&it.id));
            self.counters.reservations_reconciled += u64::try_from(ended).unwrap_or(u64::MAX);
        }
    }

    /// Takes in what another router has sent, or seen the end of. Its own changes come back on the topic and
    /// are ignored, as is what concerns a reservation that `router` did not make.
    pub fn apply_peer(&mut self, router: &InstanceId, change: &ReservationChange, now: Timestamp) {
        let (ReservationChange::Reserve { id, .. } | ReservationChange::Release { id }) = change;
        let known = self.reservations.get(*id);
        if *router == self.instance || known.is_some_and(|it| it.router != *router) {
            return;
        }
        match change {
            ReservationChange::Reserve {
                id,
                target,
                uncached,
                landmarks,
                lease_until,
                conversation,
            } => {
                // Told twice, its work has not begun anew.
                let is_told = |it: &Reservation| it.target == *target && it.uncached == *uncached;
                if known.is_some_and(is_told) {
                    return;
                }
                if let Some(conversation) = conversation {
                    self.oblige(*conversation, *id, target, *uncached, now);
                }
                let reservation = Reservation {
                    id: *id,
                    router: router.clone(),
                    target: target.clone(),
                    uncached: *uncached,
                    landmarks: landmarks.clone(),
                    lease_until: *lease_until,
                };
                self.reserve(reservation, now);
            }
            ReservationChange::Release { id } => {
                self.reservations.release(*id, now);
            }
        }
    }

    /// Ends the reservations that have outlived their lease by `now`, and forgets what is over. Call it a few
    /// times a second.
    pub fn expire(&mut self, now: Timestamp) {
        let expired = self.reservations.expire(now).len();
        let expired = u64::try_from(expired).unwrap_or(u64::MAX);
        self.counters.reservations_expired += expired;
        self.fleet.forget_gone(now);
        self.obligations.values_mut().for_each(|it| it.expire(now));
        let fleet = &self.fleet;
        self.presumed
            .expire(now, |it| fleet.is_live(&it.worker, it.epoch));
        self.tallies
            .expire(now, |it| fleet.is_live(&it.worker, it.epoch));
        self.truth
            .expire(now, |worker, epoch| fleet.is_live(worker, epoch));
    }

    /// What this router has reserved and released since it was last asked, in order, for its peers.
    pub fn take_changes(&mut self) -> Vec<ReservationChange> {
        self.changes.drain(..).collect()
    }

    /// The models that workers are registered for, in order.
    pub fn models(&self) -> BTreeSet<ModelName> {
        self.fleet.workers().map(|it| it.model.clone()).collect()
    }

    /// The block sizes in which a request for `model` has to be hashed and looked up, ascending.
    pub fn block_sizes(&self, model: &ModelName) -> BTreeSet<BlockSize> {
        let workers = self.fleet.workers();
        let workers = workers.filter(|it| it.model == *model);
        workers.map(|it| it.block_size).collect()
    }

    /// Registered workers, by id.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.fleet.workers()
    }

    /// A registered worker.
    pub fn worker(&self, worker: &WorkerId) -> Option<&Worker> {
        self.fleet.worker(worker)
    }

    /// The incarnation of a registered worker.
    pub fn epoch(&self, worker: &WorkerId) -> Option<Epoch> {
        self.fleet.worker(worker).map(|it| self.fleet.epoch(it))
    }

    /// Prefill tokens per second of a worker's rank, as learnt.
    pub fn prefill_rate(&self, worker: &WorkerId) -> f64 {
        self.fleet.prefill_rate(worker, &self.config)
    }

    /// Prefill work reserved at `target` by all routers and not yet done.
    pub fn pending(&self, target: &Target, now: Timestamp) -> Tokens {
        self.reservations.pending(target, now)
    }

    /// Requests there: this router's own, those that its peers have just sent, and what the engine's gauge says.
    pub fn active(&self, target: &Target, now: Timestamp) -> u32 {
        let member = self.fleet.member(&target.worker);
        let (requests, _) = member.map_or((0, 0), |it| it.gauge(target.dp_rank, now));
        let own = self.fleet.memory(target).active;
        own.max(requests).max(self.reservations.count(target))
    }

    /// Live reservations of all routers.
    pub fn reserved(&self) -> usize {
        self.reservations.len()
    }

    /// Requests of this router that have not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Blocks that its requests on their way carry and no rank had announced: none when nothing is on its way.
    pub const fn carried(&self) -> usize {
        self.carriers.len()
    }

    /// What is known of the ranks asked for and the ranks that ran.
    pub const fn truth(&self) -> &RankTruth {
        &self.truth
    }

    /// To teach it what is seen of a turn, and what peers have found.
    pub const fn truth_mut(&mut self) -> &mut RankTruth {
        &mut self.truth
    }

    /// The faults of the present incarnations' ranks.
    pub fn findings(&self, now: Timestamp) -> Vec<Finding> {
        let findings = self.truth.findings(now);
        let live = findings.filter(|it| self.fleet.is_live(&it.worker, it.epoch));
        live.cloned().collect()
    }

    /// A turn runs where its conversation is bound.
    fn oblige(
        &mut self,
        conversation: u64,
        id: DecisionId,
        target: &Target,
        uncached: Tokens,
        now: Timestamp,
    ) {
        let Some(worker) = self.fleet.worker(&target.worker) else {
            return;
        };
        let of_model = self.obligations.entry(worker.model.clone()).or_default();
        let turn = BoundTurn {
            conversation,
            id,
            target: target.clone(),
            uncached,
        };
        of_model.turn(turn, now);
    }

    /// Enters a reservation, ours or a peer's, in the book.
    fn reserve(&mut self, reservation: Reservation, now: Timestamp) {
        let rate = self
            .fleet
            .prefill_rate(&reservation.target.worker, &self.config);
        let memory = self.fleet.memory_mut(&reservation.target);
        memory.sent(reservation.uncached, now);
        if self.reservations.reserve(reservation, rate, now).is_err() {
            self.counters.reservations_refused += 1;
        }
    }

    fn publish(&mut self, change: ReservationChange) {
        if self.changes.len() >= MAX_CHANGES {
            self.changes.pop_front();
            self.counters.changes_dropped += 1;
        }
        self.changes.push_back(change);
    }
}
