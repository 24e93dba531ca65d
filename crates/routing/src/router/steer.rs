//! How far the rank of a placed request is in the router's hand, and what is presumed of workers without events.

use affinity::Owner;
use domain::{Endpoint, SequenceHash, Target, TargetState, Timestamp};
use placement::Place;

use super::Router;
use super::decide::Verdict;
use crate::open::Open;
use crate::presumed::Room;
use crate::{BindingAction, Decision, Degraded, Outcome, Request};

impl Router {
    /// The verdict as it can be carried out: where the worker would ignore a rank none is asked for, and nothing
    /// is bound to one.
    pub(super) fn steered(&self, verdict: Verdict, endpoint: Endpoint) -> Verdict {
        let Place::Target(wanted) = &verdict.place else {
            return verdict;
        };
        let engine_owns = self.fleet.owner(&wanted.worker) == Owner::Engine;
        let member = self.fleet.member(&wanted.worker);
        if !engine_owns && member.is_none_or(|it| it.can_be_steered(endpoint)) {
            return verdict;
        }
        Verdict {
            place: Place::Worker {
                worker: wanted.worker.clone(),
                epoch: wanted.epoch,
            },
            // What an engine keeps on a rank by itself is bound all the same: to its worker, until the rank shows.
            binding: match engine_owns {
                true => verdict.binding,
                false => BindingAction::None,
            },
            wanted: Some(wanted.clone()),
            ..verdict
        }
    }

    /// Whether a turn that is sent to `target` runs there, as far as has been seen.
    pub(super) fn trusts(&self, target: &Target, endpoint: Endpoint, now: Timestamp) -> bool {
        let Target { worker, epoch, .. } = target;
        !self.truth.is_untrusted(worker, *epoch, endpoint, now)
    }

    /// What the place itself lacks.
    pub(super) fn degraded(
        &self,
        verdict: &Verdict,
        endpoint: Endpoint,
        now: Timestamp,
    ) -> Vec<Degraded> {
        let mut degraded = Vec::new();
        let member = self.fleet.member(verdict.place.worker());
        if member.is_some_and(|it| !it.has_events()) {
            degraded.push(Degraded::NoEvents);
        }
        let owner = self.fleet.owner(verdict.place.worker());
        if verdict.wanted.is_some() && owner == Owner::Router {
            degraded.push(Degraded::RankNotControlled);
        }
        if let Place::Target(target) = &verdict.place
            && !self.trusts(target, endpoint, now)
        {
            degraded.push(Degraded::RankUntrusted);
        }
        degraded
    }

    /// The request's blocks in the size of the chosen worker.
    pub(super) fn blocks_at<'a>(
        &self,
        decision: &Decision,
        request: &'a Request,
    ) -> &'a [SequenceHash] {
        let member = self.fleet.member(decision.place.worker());
        let blocks = member.and_then(|member| {
            let mut hashes = request.hashes.iter();
            hashes.find(|it| it.0 == member.block_size())
        });
        blocks.map_or(&[], |it| &it.1)
    }

    /// Whether the outcome of a request teaches what its worker holds: events do not, or not all.
    pub(super) fn presumes(&self, decision: &Decision) -> bool {
        let worker = decision.place.worker();
        let mut candidates = decision.snapshot.candidates.iter();
        let member = self.fleet.member(worker);
        member.is_some_and(|it| !it.has_events())
            || candidates.any(|it| it.target.worker == *worker && it.state == TargetState::Partial)
    }

    /// A prompt is held by the rank that has computed it, where no event will say so.
    pub(super) fn presume_held(&mut self, open: &Open, at: &Target, now: Timestamp) {
        if let Some(room) = self.eventless_room(at) {
            self.presumed.hold(at, &open.blocks, room, now);
        }
    }

    /// Corrects what is presumed by what the engine found in its cache, and by the rank that ran.
    pub(super) fn presume_found(&mut self, open: &Open, outcome: &Outcome, now: Timestamp) {
        let Some(at) = open.served_by(outcome.observed_rank) else {
            return;
        };
        let Some(then) = open.rank(&at) else {
            return;
        };
        let blocks = |tokens: domain::Tokens| {
            let size = u64::from(open.block_size.get());
            u32::try_from(tokens.get() / size).unwrap_or(u32::MAX)
        };
        if let Some(asked) = open.place.target().filter(|it| **it != at) {
            let presumed = open.rank(asked).map_or(0, |it| blocks(it.presumed));
            self.presumed.cut(asked, &open.blocks, presumed);
        }
        if open.place.target() != Some(&at) {
            self.presume_held(open, &at, now);
        }
        let Some(found) = outcome.usage.and_then(|it| it.cached).map(blocks) else {
            return;
        };
        if found < blocks(then.presumed) {
            self.presumed.cut(&at, &open.blocks, found);
            // This prompt itself has been computed there since.
            self.presume_held(open, &at, now);
        }
        if then.partial && 0 < found && self.eventless_room(&at).is_none() {
            let found = open.blocks.len().min(found as usize);
            if let Some(member) = self.fleet.member(&at.worker) {
                let room = Room::of(&member.worker);
                self.presumed.hold(&at, &open.blocks[..found], room, now);
            }
        }
    }

    /// The room at a rank whose worker publishes no events.
    fn eventless_room(&self, at: &Target) -> Option<Room> {
        let member = self.fleet.member(&at.worker)?;
        (!member.has_events()).then(|| Room::of(&member.worker))
    }
}
