//! Placing a request, and reserving its place at once.

use std::collections::BTreeMap;

use std::time::Duration;

use affinity::{Binding, Mode, MoveReason, Owner, Plan};
use domain::{ReservationChange, Target, Timestamp, Tokens};
use placement::{Candidate, Choice, NoCandidate, Place, Reservation, Snapshot, choose, landmarks};

use super::{MAX_OPEN, Router};
use crate::binding::{Asked, conversation_hash, plan};
use crate::open::Open;
use crate::snapshot::{Sources, overlap};
use crate::{BindingAction, Decision, Degraded, NoTarget, OverlapView, Pin, Reason, Request};

/// Where a request goes and why, before it is recorded.
pub(super) struct Verdict {
    pub(super) place: Place,
    pub(super) reason: Reason,
    pub(super) binding: BindingAction,
    /// The rank that was wanted and cannot be asked for.
    pub(super) wanted: Option<Target>,
}

impl Router {
    /// Decides where `request` goes and reserves the work there.
    ///
    /// `index` is what the index answered, one view for each block size; none when it did not answer. The
    /// reservation ends with [`Router::first_token`], [`Router::finish`] or [`Router::abandon`]; one of the
    /// last two must follow every decision.
    pub fn decide(
        &mut self,
        request: &Request,
        index: Option<&[OverlapView]>,
        binding: Option<&Binding>,
        now: Timestamp,
        seed: u64,
    ) -> Result<Decision, NoTarget> {
        self.abandon(request.id, now);
        let decision = self.preview(request, index, binding, now, seed)?;
        self.learn_demand(&decision);
        self.enter(&decision, request, now);
        Ok(decision)
    }

    /// What [`Router::decide`] would answer now. It leaves nothing behind: no reservation, no turn taken, and
    /// nothing learnt.
    pub fn preview(
        &self,
        request: &Request,
        index: Option<&[OverlapView]>,
        binding: Option<&Binding>,
        now: Timestamp,
        seed: u64,
    ) -> Result<Decision, NoTarget> {
        let conversation = request.conversation.as_ref().map(conversation_hash);
        let sources = Sources {
            fleet: &self.fleet,
            reservations: &self.reservations,
            presumed: &self.presumed,
            tallies: &self.tallies,
            conversation,
            obligations: self.obligations.get(&request.model),
            mean_miss: self.mean_miss.get(),
            request,
            index,
            binding,
            now,
        };
        let candidates = sources.candidates();
        let overlap = index.map(|views| overlap(views, &candidates));
        let missing = missing(index, &candidates);
        let snapshot = Snapshot {
            candidates: pinned(candidates, request)?,
            turn: self.turns.get(&request.model).copied().unwrap_or(0),
            reuse: self.reuse.get(),
        };
        let asked = placement::Request {
            isl: request.isl,
            conversation,
            hint: request.hint.clone(),
            stuck: self.tallies.stuck(conversation),
        };
        let choice = choose(&asked, &snapshot, self.config.policy, seed);
        let bound_by = binding.map_or(Owner::Router, |it| self.fleet.owner(&it.target.worker));
        let turn = Asked {
            mode: self.config.affinity(&request.model),
            patience: self.config.patience,
            binding,
            owner: bound_by,
            trusted: binding.is_none_or(|it| self.trusts(&it.target, request.endpoint, now)),
            snapshot: &snapshot,
            choice: choice.as_ref().ok(),
            isl: request.isl,
            stored: overlap.map_or(Tokens::ZERO, |it| it.stored),
        };
        let verdict = verdict(&turn, request, &choice)?;
        let verdict = self.steered(verdict, request.endpoint);
        let mut degraded = Vec::from_iter(missing);
        degraded.extend(self.degraded(&verdict, request.endpoint, now));
        Ok(Decision {
            id: request.id,
            at: now,
            model: request.model.clone(),
            endpoint: request.endpoint,
            uncached: uncached(&snapshot, &verdict.place, request.isl),
            place: verdict.place,
            wanted: verdict.wanted,
            reason: verdict.reason,
            binding: verdict.binding,
            degraded,
            overlap,
            index_age: index.and_then(|views| views.iter().map(|it| it.index_age).max()),
            policy: self.config.policy,
            seed,
            request: asked,
            snapshot,
            choice,
        })
    }

    /// Sends a decided request to where another router has bound its conversation meanwhile; the
    /// reservation goes along. Where this router cannot use that target the request stays where it was
    /// placed, and the binding is left alone.
    pub fn follow(
        &mut self,
        decision: &Decision,
        request: &Request,
        winner: &Binding,
        now: Timestamp,
    ) -> Decision {
        let mut followed = decision.clone();
        let usable = decision
            .candidate(&winner.target)
            .is_some_and(Candidate::takes_new);
        if !usable {
            followed.binding = BindingAction::None;
            followed.degraded.push(Degraded::BindingUnusable);
            return followed;
        }
        self.abandon(decision.id, now);
        let joined = Verdict {
            place: Place::Target(winner.target.clone()),
            reason: Reason::Followed,
            binding: BindingAction::Keep,
            wanted: None,
        };
        let verdict = self.steered(joined, request.endpoint);
        let degraded = self.degraded(&verdict, request.endpoint, now);
        followed.degraded.retain(|it| !it.is_of_the_place());
        followed.degraded.extend(degraded);
        followed.uncached = uncached(&decision.snapshot, &verdict.place, request.isl);
        followed.place = verdict.place;
        followed.wanted = verdict.wanted;
        followed.reason = verdict.reason;
        followed.binding = verdict.binding;
        self.enter(&followed, request, now);
        followed
    }

    /// Remembers what requests are like.
    fn learn_demand(&mut self, decision: &Decision) {
        if let Some(uncached) = decision.uncached {
            self.mean_miss.learn(uncached.as_f64());
        }
        if let Some(overlap) = decision
            .overlap
            .filter(|_| decision.request.isl > Tokens::ZERO)
            .filter(|_| !decision.degraded.contains(&Degraded::PartialIndex))
        {
            let share = overlap.best.as_f64() / decision.request.isl.as_f64();
            self.reuse.learn(share.min(1.0));
        }
        if matches!(decision.reason, Reason::Policy(_)) {
            let turn = self.turns.entry(decision.model.clone()).or_default();
            *turn = turn.wrapping_add(1);
        }
    }

    /// Counts a decision as on its way, and its work as reserved where a rank is named.
    fn enter(&mut self, decision: &Decision, request: &Request, now: Timestamp) {
        let unqueued = self.is_idle(decision);
        if let Some(target) = decision.reserved_at() {
            self.fleet.memory_mut(target).active += 1;
            let uncached = decision.uncached.unwrap_or_else(|| {
                let held = decision.held_at(target).unwrap_or_default();
                request.isl.saturating_sub(held)
            });
            let queued = self.reservations.pending(target, now) + uncached;
            let rate = self.prefill_rate(&target.worker);
            let expected = Duration::try_from_secs_f64(queued.as_f64() / rate);
            let expected = expected.unwrap_or(Duration::MAX);
            let lease_until = now + expected + self.config.reservation_lease;
            let blocks = self.blocks_at(decision, request);
            self.tallies.placed(decision, target, blocks, uncached);
            // What is computed on a rank of the engine's choice is in flight to none.
            let named = decision.target().map(|_| self.blocks_at(decision, request));
            let landmarks = landmarks(named.unwrap_or(&[]));
            let conversation = match decision.binding {
                BindingAction::Create | BindingAction::Keep | BindingAction::Rebind(_) => {
                    decision.request.conversation
                }
                BindingAction::None | BindingAction::Excursion => None,
            };
            if let Some(conversation) = conversation {
                self.oblige(conversation, decision.id, target, uncached, now);
            }
            let reservation = Reservation {
                id: decision.id,
                router: self.instance.clone(),
                target: target.clone(),
                uncached,
                landmarks: landmarks.clone(),
                lease_until,
            };
            self.publish(ReservationChange::Reserve {
                id: decision.id,
                target: target.clone(),
                uncached,
                landmarks,
                lease_until,
                conversation,
            });
            self.reserve(reservation, now);
        }
        if self.open.len() >= MAX_OPEN {
            self.counters.decisions_untracked += 1;
            return;
        }
        let presumes = self.presumes(decision);
        let blocks = presumes.then(|| self.blocks_at(decision, request).to_vec());
        let mut open = Open::new(decision, unqueued, blocks.unwrap_or_default());
        open.carrier = self.carrier(decision, request);
        open.carried = self.carry(decision, request);
        self.open.insert(decision.id, open);
    }

    /// Whether no prefill is known to be under way at any rank of the place's worker: they run in lock step.
    fn is_idle(&self, decision: &Decision) -> bool {
        let candidates = decision.snapshot.candidates.iter();
        let mut ranks = candidates.filter(|it| it.target.worker == *decision.place.worker());
        ranks.all(|it| it.foreign == Tokens::ZERO && self.reservations.count(&it.target) == 0)
    }
}

/// What of the index is missing.
fn missing(index: Option<&[OverlapView]>, candidates: &[Candidate]) -> Option<Degraded> {
    match index {
        None => Some(Degraded::NoIndex),
        Some(_) if candidates.iter().any(|it| !it.index_known) => Some(Degraded::PartialIndex),
        Some(_) => None,
    }
}

/// The candidates that a pin leaves.
fn pinned(candidates: Vec<Candidate>, request: &Request) -> Result<Vec<Candidate>, NoTarget> {
    if candidates.is_empty() {
        return Err(NoTarget::UnknownModel {
            model: request.model.clone(),
        });
    }
    let Some(pin) = &request.pin else {
        return Ok(candidates);
    };
    let (pinned, others): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .partition(|it| pin.allows(&it.target));
    if pinned.iter().any(Candidate::takes_new) {
        return Ok(pinned);
    }
    let valid = others.into_iter().filter(Candidate::takes_new);
    Err(NoTarget::InvalidPin {
        valid: valid.map(|it| it.target).collect(),
    })
}

fn verdict(
    turn: &Asked<'_>,
    request: &Request,
    choice: &Result<Choice, NoCandidate>,
) -> Result<Verdict, NoTarget> {
    let Asked {
        mode,
        binding,
        snapshot,
        ..
    } = *turn;
    let chosen = choice.as_ref().map_err(|_| no_target(request, snapshot));
    if let Some(pin) = &request.pin {
        return Ok(Verdict {
            place: pin.place(snapshot, chosen?),
            reason: Reason::Pinned,
            binding: BindingAction::None,
            wanted: None,
        });
    }
    let bound = |binding: &Binding, reason| Verdict {
        place: Place::Target(binding.target.clone()),
        reason,
        binding: BindingAction::Keep,
        wanted: None,
    };
    let free = |choice: &Choice, binding| Verdict {
        place: choice.place.clone(),
        reason: Reason::Policy(choice.reason),
        binding,
        wanted: None,
    };
    match (plan(turn), binding) {
        (Plan::Keep, Some(binding)) => Ok(bound(binding, Reason::Bound)),
        (Plan::Rebind(MoveReason::Drained), Some(binding)) if chosen.is_err() => {
            Ok(bound(binding, Reason::BoundForLackOfOthers))
        }
        (Plan::Rebind(reason), Some(binding)) => {
            let choice = chosen?;
            if turn.owner == Owner::Engine && is_of_worker(choice, &binding.target) {
                // Which of its ranks is the engine's to decide.
                return Ok(bound(binding, Reason::Bound));
            }
            let stays = choice.place.target() == Some(&binding.target);
            let action = if stays {
                BindingAction::Keep
            } else {
                BindingAction::Rebind(reason)
            };
            Ok(free(choice, action))
        }
        (Plan::Excursion, Some(_)) => Ok(Verdict {
            reason: Reason::Excursion,
            ..free(chosen?, BindingAction::Excursion)
        }),
        (Plan::New | Plan::Keep | Plan::Rebind(_) | Plan::Excursion, _) => {
            let binds = mode != Mode::Off && request.conversation.is_some();
            let action = if binds {
                BindingAction::Create
            } else {
                BindingAction::None
            };
            Ok(free(chosen?, action))
        }
    }
}

fn is_of_worker(choice: &Choice, bound: &Target) -> bool {
    let chosen = choice.place.target();
    chosen.is_some_and(|it| it.worker == bound.worker && it.epoch == bound.epoch)
}

fn no_target(request: &Request, snapshot: &Snapshot) -> NoTarget {
    match request.tried.len() {
        0 => {
            let mut targets = BTreeMap::new();
            for candidate in &snapshot.candidates {
                *targets.entry(candidate.state).or_insert(0) += 1;
            }
            NoTarget::NoneReady {
                model: request.model.clone(),
                targets,
            }
        }
        tried => NoTarget::AllTried { tried },
    }
}

/// Tokens to be computed at `place`.
fn uncached(snapshot: &Snapshot, place: &Place, isl: Tokens) -> Option<Tokens> {
    let target = place.target()?;
    let known = snapshot.candidates.iter().find(|it| it.target == *target);
    let held = known.map_or(Tokens::ZERO, |it| it.held.disk.max(it.in_flight));
    Some(isl.saturating_sub(held))
}

impl Pin {
    fn allows(&self, target: &Target) -> bool {
        self.worker == target.worker && self.dp_rank.is_none_or(|rank| rank == target.dp_rank)
    }

    /// The rank insisted on, whatever the policy makes of it; else what the policy chose among its ranks.
    fn place(&self, snapshot: &Snapshot, choice: &Choice) -> Place {
        match (self.dp_rank, snapshot.candidates.first()) {
            (Some(_), Some(candidate)) => Place::Target(candidate.target.clone()),
            _ => choice.place.clone(),
        }
    }
}
