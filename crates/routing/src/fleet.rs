//! The fleet as one router sees it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use affinity::Owner;
use domain::{
    BlockSize, DpRank, Endpoint, Epoch, Folding, KvEndpoints, ModelName, RankControl, RankLoad,
    Target, TargetState, Timestamp, Tokens, Worker, WorkerId,
};
use placement::Reservations;

use crate::drains::Drains;
use crate::heard::Heard;
use crate::learnt::Speed;
use crate::{Config, RankSources};

/// How long a gauge is believed.
const GAUGE_LEASE: Duration = Duration::from_secs(10);
/// Over how many seconds the demand on a target is averaged: longer than a burst, shorter than the time in
/// which conversations come and go.
const DEMAND_SECONDS: f64 = 120.0;

/// Workers, gauges, and what is remembered of each target.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    workers: BTreeMap<WorkerId, Member>,
    /// Incarnations, which may be known before their worker registers.
    epochs: HashMap<WorkerId, Epoch>,
    targets: HashMap<Target, Memory, Folding>,
    pub(crate) drains: Drains,
    pub(crate) heard: Heard,
    pub(crate) sources: RankSources,
    /// Until when a rank is avoided at an endpoint that refused it.
    refusals: HashMap<(Target, Endpoint), Timestamp>,
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) worker: Worker,
    pub(crate) speed: Speed,
    gauges: HashMap<DpRank, Gauge>,
}

/// One rank's gauges, compared with what was reserved when they were taken.
#[derive(Clone, Copy, Debug)]
struct Gauge {
    load: RankLoad,
    /// Requests waiting that no known router had reserved.
    foreign: u32,
}

/// What a router remembers of a target by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// Tokens sent there to be computed since it is known: an upper bound of what it holds.
    pub(crate) resident: Tokens,
    /// This router's requests on their way there.
    pub(crate) active: u32,
    /// Until when it is avoided after a failure.
    pub(crate) avoid_until: Option<Timestamp>,
    /// Tokens sent there, each fading over [`DEMAND_SECONDS`], as of `demand_at`.
    demand: f64,
    demand_at: Timestamp,
}

impl Memory {
    /// Work to be computed has been sent there.
    pub(crate) fn sent(&mut self, uncached: Tokens, now: Timestamp) {
        self.resident += uncached;
        self.demand = self.faded(now) + uncached.as_f64();
        self.demand_at = now;
    }

    /// Tokens per second sent there of late.
    pub(crate) fn demand_rate(&self, now: Timestamp) -> f64 {
        self.faded(now) / DEMAND_SECONDS
    }

    fn faded(&self, now: Timestamp) -> f64 {
        let seconds = now.since(self.demand_at).as_secs_f64();
        self.demand * (-seconds / DEMAND_SECONDS).exp()
    }
}

impl Fleet {
    pub(crate) fn set_worker(&mut self, worker: Worker, config: &Config) {
        match self.workers.get_mut(&worker.id) {
            Some(member) => {
                if member.worker.epoch != worker.epoch {
                    member.gauges.clear();
                }
                member.worker = worker;
            }
            None => {
                let speed = Speed::new(config);
                let member = Member {
                    worker,
                    speed,
                    gauges: HashMap::new(),
                };
                self.workers.insert(member.worker.id.clone(), member);
            }
        }
    }

    pub(crate) fn remove_worker(&mut self, worker: &WorkerId) -> Option<Worker> {
        self.workers.remove(worker).map(|it| it.worker)
    }

    pub(crate) fn set_epoch(&mut self, worker: &WorkerId, epoch: Epoch) {
        let before = self.epochs.insert(worker.clone(), epoch);
        // What the incarnation before had to do is over.
        if before != Some(epoch)
            && let Some(member) = self.workers.get_mut(worker)
        {
            member.gauges.clear();
        }
    }

    /// The state of a worker's rank, without what the index says of it.
    pub(crate) fn state(&self, worker: &Worker, dp_rank: DpRank) -> TargetState {
        if self.sources.refusal(worker).is_some() {
            return TargetState::Gone;
        }
        self.drains.state(&worker.id, dp_rank, worker.state)
    }

    pub(crate) fn epoch(&self, worker: &Worker) -> Epoch {
        self.epochs.get(&worker.id).copied().unwrap_or(worker.epoch)
    }

    pub(crate) fn set_load(
        &mut self,
        worker: &WorkerId,
        ranks: &[RankLoad],
        reservations: &Reservations,
    ) {
        let Some(member) = self.workers.get(worker) else {
            return;
        };
        let epoch = self.epoch(&member.worker);
        let target = |dp_rank| Target {
            worker: worker.clone(),
            epoch,
            dp_rank,
        };
        let owned = ranks.iter().filter(|it| member.worker.owns(it.dp_rank));
        let gauges: Vec<Gauge> = owned
            .map(|load| {
                let known = reservations.count_at(&target(load.dp_rank), load.at);
                Gauge {
                    load: *load,
                    foreign: load.waiting.saturating_sub(known),
                }
            })
            .collect();
        if let Some(member) = self.workers.get_mut(worker) {
            let gauges = gauges.into_iter().map(|it| (it.load.dp_rank, it));
            member.gauges.extend(gauges);
        }
    }

    /// Workers of `model` with a live registration, by id.
    pub(crate) fn members<'a>(
        &'a self,
        model: &'a ModelName,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Member> {
        self.workers
            .values()
            .filter(move |it| it.worker.model == *model && self.is_registered(&it.worker, now))
    }

    /// Whether its registration is live.
    pub(crate) fn is_registered(&self, worker: &Worker, now: Timestamp) -> bool {
        self.heard.as_of(now) < worker.lease_until
    }

    pub(crate) fn member(&self, worker: &WorkerId) -> Option<&Member> {
        self.workers.get(worker)
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values().map(|it| &it.worker)
    }

    /// Who decides the ranks of a worker.
    pub(crate) fn owner(&self, worker: &WorkerId) -> Owner {
        let worker = self.worker(worker);
        worker.map_or(Owner::Router, |it| self.sources.owner(it))
    }

    pub(crate) fn worker(&self, worker: &WorkerId) -> Option<&Worker> {
        self.workers.get(worker).map(|it| &it.worker)
    }

    pub(crate) fn speed_mut(&mut self, worker: &WorkerId) -> Option<&mut Speed> {
        self.workers.get_mut(worker).map(|it| &mut it.speed)
    }

    pub(crate) fn prefill_rate(&self, worker: &WorkerId, config: &Config) -> f64 {
        let speed = self.workers.get(worker).map(|it| it.speed);
        speed.unwrap_or(Speed::new(config)).prefill_rate()
    }

    pub(crate) fn memory(&self, target: &Target) -> Memory {
        self.targets.get(target).copied().unwrap_or_default()
    }

    pub(crate) fn memory_mut(&mut self, target: &Target) -> &mut Memory {
        self.targets.entry(target.clone()).or_default()
    }

    /// An endpoint refused the rank it was asked for, which is avoided there until then.
    pub(crate) fn refused(&mut self, target: &Target, endpoint: Endpoint, until: Timestamp) {
        self.refusals.insert((target.clone(), endpoint), until);
    }

    /// Whether an endpoint has refused a rank lately.
    pub(crate) fn refuses(&self, target: &Target, endpoint: Endpoint, now: Timestamp) -> bool {
        let until = self.refusals.get(&(target.clone(), endpoint));
        until.is_some_and(|until| now < *until)
    }

    /// Whether it is the present incarnation of a registered worker.
    pub(crate) fn is_live(&self, worker: &WorkerId, epoch: Epoch) -> bool {
        let member = self.workers.get(worker);
        member.is_some_and(|it| self.epoch(&it.worker) == epoch)
    }

    /// Forgets targets that are no more and have nothing on its way, and refusals that are over.
    pub(crate) fn forget_gone(&mut self, now: Timestamp) {
        let mut targets = std::mem::take(&mut self.targets);
        targets.retain(|it, memory| memory.active > 0 || self.is_live(&it.worker, it.epoch));
        self.targets = targets;
        self.refusals.retain(|_, until| now < *until);
    }
}

impl Member {
    /// Requests at a rank, and how many of the waiting ones no known router sent, by its last gauge; zero
    /// when that is too old to be believed.
    pub(crate) fn gauge(&self, dp_rank: DpRank, now: Timestamp) -> (u32, u32) {
        let gauge = self.gauges.get(&dp_rank);
        gauge
            .filter(|it| now.since(it.load.at) < GAUGE_LEASE)
            .map_or((0, 0), |it| {
                let requests = it.load.running.saturating_add(it.load.waiting);
                (requests, it.foreign)
            })
    }

    /// The last gauge of a rank, while it is believed.
    pub(crate) fn load(&self, dp_rank: DpRank, now: Timestamp) -> Option<&RankLoad> {
        let load = self.gauges.get(&dp_rank).map(|it| &it.load);
        load.filter(|it| now.since(it.at) < GAUGE_LEASE)
    }

    /// The capacity of one rank's cache.
    pub(crate) fn capacity(&self) -> Option<Tokens> {
        let block = u64::from(self.worker.block_size.get());
        let blocks = self.worker.kv_blocks?;
        Some(Tokens::new(blocks.saturating_mul(block)))
    }

    /// Whether an event tells what it holds.
    pub(crate) const fn has_events(&self) -> bool {
        match self.worker.kv_endpoints {
            KvEndpoints::None => false,
            KvEndpoints::Zmq(_) | KvEndpoints::Drained(_) => true,
        }
    }

    /// Whether a rank asked for at `endpoint` is the one that runs: a single rank always is.
    pub(crate) fn can_be_steered(&self, endpoint: Endpoint) -> bool {
        match self.worker.capability.rank_control.get(endpoint) {
            RankControl::Strict | RankControl::FirstTurn => true,
            RankControl::None => self.worker.dp_size <= 1,
        }
    }

    pub(crate) const fn block_size(&self) -> BlockSize {
        self.worker.block_size
    }
}

/// The state of a target whose worker registers one and whose index reports another, where it does.
pub(crate) fn combined(registered: TargetState, reported: Option<TargetState>) -> TargetState {
    match (registered, reported) {
        (
            TargetState::Warming | TargetState::Draining | TargetState::Leaving | TargetState::Gone,
            _,
        )
        | (_, None) => registered,
        (TargetState::Ready | TargetState::Suspect | TargetState::Partial, Some(reported)) => {
            reported
        }
    }
}
