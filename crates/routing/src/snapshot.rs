//! The fleet of one model at the moment of a decision.

use std::collections::HashMap;

use domain::{Depths, SequenceHash, Target, TargetState, Timestamp, Tokens};
use placement::{Barred, Candidate, Held, Reservations};

use crate::fleet::{Fleet, Member, combined};
use crate::presumed::{Presumed, Room};
use crate::{Overlap, OverlapView, Request};

/// What a snapshot is taken from.
pub(crate) struct Sources<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) reservations: &'a Reservations,
    pub(crate) presumed: &'a Presumed,
    /// The mean of uncached tokens a request has.
    pub(crate) mean_miss: f64,
    pub(crate) request: &'a Request,
    pub(crate) views: &'a [OverlapView],
    pub(crate) now: Timestamp,
}

impl Sources<'_> {
    /// Every target of the model, in ascending order.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let depths = self.depths();
        let states = self.states();
        let mut candidates = Vec::new();
        for member in self.fleet.members(&self.request.model, self.now) {
            let in_flight = self.reservations.in_flight(self.hashes(member));
            let epoch = self.fleet.epoch(&member.worker);
            for dp_rank in member.worker.ranks() {
                let target = Target {
                    worker: member.worker.id.clone(),
                    epoch,
                    dp_rank,
                };
                let in_flight = in_flight.get(&target).copied().unwrap_or(0);
                let held = depths.get(&target).copied().unwrap_or_default();
                let reported = states.get(&target).copied();
                candidates.push(self.candidate(member, target, reported, held, in_flight));
            }
        }
        candidates
    }

    /// The levels of the waterfall, if the index has answered.
    pub(crate) fn overlap(&self, candidates: &[Candidate]) -> Overlap {
        let (mut ceiling, mut stored) = (Tokens::ZERO, Tokens::ZERO);
        for view in self.views {
            ceiling = ceiling.max(view.block_size.tokens(view.ceiling));
            stored = stored.max(view.block_size.tokens(view.stored));
        }
        let held = |it: &Candidate| it.held.disk;
        let ready = candidates.iter().filter(|it| it.takes_new());
        Overlap {
            ceiling,
            stored,
            best: candidates.iter().map(held).max().unwrap_or_default(),
            ready: ready.map(held).max().unwrap_or_default(),
        }
    }

    fn candidate(
        &self,
        member: &Member,
        target: Target,
        reported: Option<TargetState>,
        held: Depths,
        in_flight: u32,
    ) -> Candidate {
        let block_size = member.block_size();
        let cacheable = block_size.cacheable_blocks(self.request.isl);
        let tokens = |blocks: u32| block_size.tokens(blocks.min(cacheable));
        let registered = self.fleet.state(&member.worker, target.dp_rank);
        let state = combined(registered, reported);
        // Complete claims need no presumption.
        let presumed = match state == TargetState::Partial || !member.has_events() {
            true => {
                let hashes = self.hashes(member);
                self.presumed.depth(&target, hashes, self.now)
            }
            false => 0,
        };
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
        let reserved = self.reservations.count(&target);
        Candidate {
            state,
            barred: self.barred(&target),
            block_size,
            held: Held {
                gpu: tokens(held.gpu.max(presumed)),
                host: tokens(held.host.max(presumed)),
                disk: tokens(held.disk.max(presumed)),
            },
            presumed: tokens(presumed),
            has_events: member.has_events(),
            in_flight: tokens(in_flight),
            pending: self.reservations.pending(&target, self.now),
            // A float to integer cast saturates; a mean of tokens is not negative.
            foreign: Tokens::new((f64::from(foreign) * self.mean_miss) as u64),
            active: memory.active.max(requests).max(reserved),
            resident,
            capacity,
            utilisation: memory.demand_rate(self.now) / member.speed.prefill_rate(),
            prefill_rate: member.speed.prefill_rate(),
            decode_step: member.speed.decode_step(),
            target,
        }
    }

    fn barred(&self, target: &Target) -> Option<Barred> {
        if self.request.tried.contains(target) {
            return Some(Barred::Tried);
        }
        let avoided = self.fleet.memory(target).avoid_until;
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

    fn depths(&self) -> HashMap<&Target, Depths> {
        let groups = self.views.iter().flat_map(|it| &it.groups);
        groups
            .flat_map(|group| group.targets.iter().map(|target| (target, group.depths)))
            .collect()
    }

    fn states(&self) -> HashMap<&Target, TargetState> {
        let states = self.views.iter().flat_map(|it| &it.not_ready);
        states.map(|(target, state)| (target, *state)).collect()
    }
}
