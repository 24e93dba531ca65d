//! The fleet of one model at the moment of a decision.

use std::collections::HashMap;

use affinity::Binding;
use domain::{BlockSize, Depths, Folding, SequenceHash, Target, TargetState, Timestamp, Tokens};
use placement::{
    Barred, Candidate, Gauge, Held, InFlight, Obligation, Obligations, Reservations, Reserved,
};

use crate::fleet::{Fleet, Member, combined};
use crate::presumed::{Presumed, Room};
use crate::tally::Tallies;
use crate::{Overlap, OverlapView, Request};

/// What a snapshot is taken from.
pub(crate) struct Sources<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) reservations: &'a Reservations,
    pub(crate) presumed: &'a Presumed,
    pub(crate) tallies: &'a Tallies,
    /// The request's conversation, as `obligations` knows it.
    pub(crate) conversation: Option<u64>,
    /// What conversations of the model will go on to ask.
    pub(crate) obligations: Option<&'a Obligations>,
    /// The mean of uncached tokens a request has.
    pub(crate) mean_miss: f64,
    pub(crate) request: &'a Request,
    /// None where the index did not answer.
    pub(crate) index: Option<&'a [OverlapView]>,
    pub(crate) binding: Option<&'a Binding>,
    pub(crate) now: Timestamp,
}

/// What the index says of one target.
#[derive(Clone, Copy, Debug)]
struct Said {
    held: Depths,
    /// None where its claims are complete.
    state: Option<TargetState>,
}

impl Sources<'_> {
    /// Every target of the model, in ascending order.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let depths = self.depths();
        let states = self.states();
        let says = |target: &Target| {
            self.knows(target).then(|| Said {
                held: depths.get(target).copied().unwrap_or_default(),
                state: states.get(target).copied(),
            })
        };
        // Most models have one block size.
        let mut last: Option<(BlockSize, InFlight)> = None;
        let mut candidates = Vec::new();
        for member in self.fleet.members(&self.request.model, self.now) {
            let in_flight = match last.take() {
                Some(same) if same.0 == member.block_size() => same.1,
                _ => self.reservations.in_flight(self.hashes(member)),
            };
            let epoch = self.fleet.epoch(&member.worker);
            for dp_rank in member.worker.ranks() {
                let target = Target {
                    worker: member.worker.id.clone(),
                    epoch,
                    dp_rank,
                };
                let reserved = self.reservations.at(&target, &in_flight, self.now);
                let said = says(&target);
                candidates.push(self.candidate(member, target, said, reserved));
            }
            last = Some((member.block_size(), in_flight));
        }
        candidates
    }

    fn candidate(
        &self,
        member: &Member,
        target: Target,
        said: Option<Said>,
        reserved: Reserved,
    ) -> Candidate {
        let block_size = member.block_size();
        let cacheable = block_size.cacheable_blocks(self.request.isl);
        let tokens = |blocks: u32| block_size.tokens(blocks.min(cacheable));
        let registered = self.fleet.state(&member.worker, target.dp_rank);
        let state = combined(registered, said.and_then(|it| it.state));
        let learns = state == TargetState::Partial || !member.has_events();
        let sent = match learns {
            true => {
                let hashes = self.hashes(member);
                self.presumed.depth(&target, hashes, self.now)
            }
            false => 0,
        };
        // Complete claims need no presumption, and the last prompt of a slot drives out the one before.
        let is_led = (learns || said.is_none()) && !Room::of(&member.worker).is_for_one();
        let left = match (said, self.binding) {
            // What the last turn left there.
            (None, Some(bound)) if bound.target == target => bound.held,
            _ => self.led_to(&target).filter(|_| is_led).unwrap_or_default(),
        };
        let presumed = tokens(sent).max(left.min(block_size.tokens(cacheable)));
        let held = said.map_or(Depths::default(), |it| it.held);
        let memory = self.fleet.memory(&target);
        // Where there is room for one prompt only, this one takes the place of the last.
        let (resident, capacity) = match Room::of(&member.worker).is_for_one() {
            true => {
                let last = self.presumed.blocks(&target, self.now);
                (block_size.tokens(last), Some(self.request.isl))
            }
            false => (memory.resident, member.capacity()),
        };
        let (requests, foreign) = member.gauge(target.dp_rank, self.now);
        Candidate {
            state,
            barred: self.barred(&target, memory.avoid_until),
            block_size,
            held: Held {
                gpu: tokens(held.gpu).max(presumed),
                host: tokens(held.host).max(presumed),
                disk: tokens(held.disk).max(presumed),
            },
            presumed,
            index_known: said.is_some(),
            has_events: member.has_events(),
            in_flight: tokens(reserved.in_flight),
            pending: reserved.pending,
            // A float to integer cast saturates; a mean of tokens is not negative.
            foreign: Tokens::new((f64::from(foreign) * self.mean_miss) as u64),
            active: memory.active.max(requests).max(reserved.count),
            gauge: member.load(target.dp_rank, self.now).map(|it| Gauge {
                running: it.running,
                waiting: it.waiting,
                kv_used: it.kv_used,
            }),
            tally: self.tallies.at(&target, self.hashes(member), self.now),
            resident,
            capacity,
            obligation: self.obligation(&target),
            overdue: self.overdue(member, &target),
            utilisation: memory.demand_rate(self.now) / member.speed.prefill_rate(),
            prefill_rate: member.speed.prefill_rate(),
            decode_step: member.speed.decode_step(),
            target,
        }
    }

    fn overdue(&self, member: &Member, target: &Target) -> f64 {
        let load = member.load(target.dp_rank, self.now);
        load.map_or(0.0, |it| {
            let overdue = self
                .reservations
                .overdue(target, it.waiting, it.at, self.now);
            overdue.as_secs_f64()
        })
    }

    /// What the request that this one goes on with left at `target`, if it ran there.
    fn led_to(&self, target: &Target) -> Option<Tokens> {
        let lead = self.request.lead.as_ref();
        lead.filter(|it| it.target == *target).map(|it| it.held)
    }

    fn obligation(&self, target: &Target) -> Obligation {
        let of_model = self.obligations;
        let of_model = of_model.map(|it| it.at(target, self.conversation, self.now));
        of_model.unwrap_or_default()
    }

    fn barred(&self, target: &Target, avoided: Option<Timestamp>) -> Option<Barred> {
        if self.request.tried.contains(target) {
            return Some(Barred::Tried);
        }
        if self.request.no_adapter.contains(&target.worker) {
            return Some(Barred::NoAdapter);
        }
        let endpoint = self.request.endpoint;
        let failed = avoided.is_some_and(|until| until > self.now)
            || self.fleet.refuses(target, endpoint, self.now);
        failed.then_some(Barred::FailedLately)
    }

    fn hashes(&self, member: &Member) -> &[SequenceHash] {
        let mut hashes = self.request.hashes.iter();
        hashes
            .find(|it| it.0 == member.block_size())
            .map_or(&[], |it| &it.1)
    }

    /// Whether the index has said what a target holds.
    fn knows(&self, target: &Target) -> bool {
        let is_unknown = |it: &OverlapView| {
            !it.unknown.is_empty()
                && it
                    .unknown
                    .contains(&(target.worker.clone(), target.dp_rank))
        };
        self.index
            .is_some_and(|views| !views.iter().any(is_unknown))
    }

    fn views(&self) -> impl Iterator<Item = &OverlapView> {
        self.index.into_iter().flatten()
    }

    fn depths(&self) -> HashMap<&Target, Depths, Folding> {
        let groups = self.views().flat_map(|it| &it.groups);
        groups
            .flat_map(|group| group.targets.iter().map(|target| (target, group.depths)))
            .collect()
    }

    fn states(&self) -> HashMap<&Target, TargetState, Folding> {
        let states = self.views().flat_map(|it| &it.not_ready);
        states.map(|(target, state)| (target, *state)).collect()
    }
}

/// The levels of the waterfall, as far as the index knows them.
pub(crate) fn overlap(views: &[OverlapView], candidates: &[Candidate]) -> Overlap {
    let (mut ceiling, mut stored) = (Tokens::ZERO, Tokens::ZERO);
    for view in views {
        ceiling = ceiling.max(view.block_size.tokens(view.ceiling));
        stored = stored.max(view.block_size.tokens(view.stored));
    }
    let held = |it: &Candidate| it.held.disk;
    let known = || candidates.iter().filter(|it| it.index_known);
    let ready = known().filter(|it| it.takes_new());
    Overlap {
        ceiling,
        stored,
        best: known().map(held).max().unwrap_or_default(),
        ready: ready.map(held).max().unwrap_or_default(),
    }
}
