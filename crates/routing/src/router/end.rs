//! How a request ends: its reservation on every path exactly once, and what its outcome teaches.

use accounting::Waterfall;
use domain::{DecisionId, ReservationChange, Target, Timestamp};

use super::Router;
use crate::open::{Avoided, Open, Outcome, Status};

impl Router {
    /// The first token of a request has come: its prefill is done. Repeats are harmless.
    pub fn first_token(&mut self, id: DecisionId, now: Timestamp) {
        self.end_reservation(id, now);
        let Some(mut open) = self.open.remove(&id) else {
            return;
        };
        if let Some(target) = open.place.target().filter(|_| !open.first_token) {
            self.presume_held(&open, target, now);
        }
        open.first_token = true;
        self.open.insert(id, open);
    }

    /// A request has ended. Its row of the waterfall if anything of it was served; none otherwise, and none
    /// for an id that is not on its way.
    pub fn finish(
        &mut self,
        id: DecisionId,
        outcome: &Outcome,
        now: Timestamp,
    ) -> Option<Waterfall> {
        let open = self.close(id, now)?;
        self.learn_outcome(&open, outcome, now);
        let served = open.first_token || outcome.status == Status::Served;
        if served {
            self.presume_found(&open, outcome, now);
        }
        served.then(|| open.waterfall(outcome))
    }

    /// A request was never sent, or nobody will say how it ended.
    pub fn abandon(&mut self, id: DecisionId, now: Timestamp) {
        self.close(id, now);
    }

    fn close(&mut self, id: DecisionId, now: Timestamp) -> Option<Open> {
        self.end_reservation(id, now);
        self.tallies.ended(id);
        let mut open = self.open.remove(&id)?;
        self.carriers.give_back(std::mem::take(&mut open.carried));
        if let Some(target) = &open.reserved_at {
            let memory = self.fleet.memory_mut(target);
            memory.active = memory.active.saturating_sub(1);
        }
        Some(open)
    }

    fn end_reservation(&mut self, id: DecisionId, now: Timestamp) {
        if self.reservations.release(id, now).is_some() {
            self.publish(ReservationChange::Release { id });
        }
    }

    fn learn_outcome(&mut self, open: &Open, outcome: &Outcome, now: Timestamp) {
        self.mark_avoided(open, outcome, now);
        let Some(speed) = self.fleet.speed_mut(open.place.worker()) else {
            return;
        };
        let (Status::Served, Some(ttft)) = (outcome.status, outcome.ttft) else {
            return;
        };
        let cached = outcome.usage.and_then(|it| it.cached);
        let computed = cached.map(|it| open.isl(outcome).saturating_sub(it));
        if let Some(computed) = computed.or(open.uncached).filter(|_| open.unqueued) {
            speed.prefilled(computed, ttft);
        }
        if let (Some(usage), Some(duration)) = (outcome.usage, outcome.duration) {
            speed.decoded(usage.completion, duration.saturating_sub(ttft));
        }
    }

    fn mark_avoided(&mut self, open: &Open, outcome: &Outcome, now: Timestamp) {
        let until = now + self.config.failure_lease;
        let avoided: Vec<Target> = match outcome.status.avoided() {
            Avoided::Nothing => Vec::new(),
            Avoided::Rank => open.served_by(outcome.observed_rank).into_iter().collect(),
            Avoided::Worker => open.ranks.iter().map(|it| it.target.clone()).collect(),
            Avoided::RankAtEndpoint => {
                if let Some(target) = open.place.target() {
                    self.fleet.refused(target, open.endpoint, until);
                }
                Vec::new()
            }
        };
        for target in avoided {
            self.fleet.memory_mut(&target).avoid_until = Some(until);
        }
    }
}
