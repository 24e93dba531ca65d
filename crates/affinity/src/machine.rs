//! What may happen to a binding: `none -> provisional -> confirmed -> expired`, moves, and leases.
//!
//! A [`Standing`] is all that the store knows of one conversation; [`Standing::apply`] takes one event to
//! the next standing and the write that leads there. It performs nothing: if the write meets another
//! revision, the caller takes what it finds by [`Standing::reread`] and applies the same event again.

use std::time::Duration;

use domain::{InstanceId, Target, Timestamp, Tokens};

use crate::leases::Leases;
use crate::{Binding, BindingState, ConversationKey, Evidence, MoveReason, Owner, TurnEnd};

/// A touch is written at most once in this share of the idle TTL.
const TOUCHES_PER_TTL: u32 = 8;
/// The written `held` may differ from the true one by this share before it is written again: the test for a
/// lost prefix asks for half of it, so a store that starts anew must not be off by as much.
const HELD_SLACK: f64 = 0.25;

/// How long things last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// A router's silence for so long ends what it has in flight.
    pub lease: Duration,
    /// A confirmed binding ends so long after its last stream has.
    pub idle_ttl: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            idle_ttl: Duration::from_secs(30 * 60),
        }
    }
}

/// What is known of one conversation: its binding as it is, when that was written, and what is in flight.
///
/// What is written differs from what is only by touches not worth a write: `held` by at most a quarter, `last_end` by at
/// most an eighth of the idle TTL, `turns`, `evidence` and the end of the lease. A store that starts anew
/// loses those, so that a binding may end by so much too early, never too late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    binding: Option<Binding>,
    written: Option<Touch>,
    leases: Leases,
}

/// What turns change of a binding, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Touch {
    held: Tokens,
    last_end: Timestamp,
}

/// Something that happens to a conversation.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A turn begins: it binds the conversation to `proposed`, or joins the binding there is.
    Acquire {
        /// Which conversation.
        key: &'a ConversationKey,
        /// Where it would be bound.
        proposed: &'a Target,
        /// Who decides the rank.
        owner: Owner,
        /// Who has the turn in flight.
        actor: &'a InstanceId,
    },
    /// A turn's first byte was served.
    Confirm {
        /// Where the turn was sent.
        asked: &'a Target,
        /// Where it ran.
        observed: &'a Target,
        /// What shows that.
        evidence: Evidence,
        /// Who says so.
        actor: &'a InstanceId,
    },
    /// The binding leaves its target; the mover has a turn in flight at the new one.
    Rebind {
        /// Where it shall be.
        to: &'a Target,
        /// Why.
        reason: MoveReason,
        /// Who has the turn in flight.
        actor: &'a InstanceId,
    },
    /// A turn has ended, whether or not it ran at the bound target.
    Release {
        /// Where it ran, or would have.
        target: &'a Target,
        /// How it ended.
        end: TurnEnd,
        /// Who had it in flight.
        actor: &'a InstanceId,
    },
    /// A router still has turns in flight.
    Renew {
        /// Which router.
        actor: &'a InstanceId,
    },
    /// Nothing but the passing of time.
    Lapse,
    /// An operator puts it at a target, whether or not a turn is in flight: there is none for this.
    Reassign {
        /// Where it shall be.
        to: &'a Target,
        /// Who says so.
        actor: &'a InstanceId,
    },
    /// An operator ends it.
    Unbind,
    /// There are more bindings than there may be: an idle one makes room.
    MakeRoom,
    /// A binding comes back as it was exported, where the conversation has none.
    Import {
        /// As it was.
        binding: &'a Binding,
    },
}

/// Where an event leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The standing, once the write is done.
    pub next: Standing,
    /// What must be written first.
    pub write: Write,
    /// What happened.
    pub outcome: Outcome,
}

/// What to do to the table; the revision it replaces is the caller's knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Take this value.
    Put(Binding),
    /// Take the entry away.
    Delete,
    /// Leave it as it is.
    Nothing,
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The conversation was bound.
    Created,
    /// It was bound already, and the turn follows.
    Joined,
    /// The bound target has served.
    Confirmed,
    /// A conflict: the engine served elsewhere, and the binding followed.
    Followed,
    /// A conflict: the engine served elsewhere again, and the binding stays.
    Contradicted,
    /// The binding was moved.
    Moved,
    /// A turn ended and left something at the bound target.
    Touched,
    /// The last turn in flight ended before anything was served: the conversation is free.
    Freed,
    /// Its time was over.
    Expired,
    /// An operator ended it.
    Unbound,
    /// It was idle and made room for others.
    MadeRoom,
    /// Nothing that matters to others.
    Unchanged,
}

/// The conversation has no binding to confirm or to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the conversation is not bound")]
pub struct NotBound;

impl Standing {
    /// As first read from the table. What was in flight is unknown, so a provisional binding gets one lease.
    pub fn found(binding: Option<Binding>, now: Timestamp, terms: &Terms) -> Self {
        let leases = match binding.as_ref().map(|it| it.state) {
            Some(BindingState::Provisional { .. }) => Leases::unknown(now + terms.lease),
            Some(BindingState::Confirmed) | None => Leases::default(),
        };
        Self {
            written: binding.as_ref().map(Touch::of),
            binding,
            leases,
        }
    }

    /// As read again after somebody else has written: what is in flight here stays so.
    #[must_use]
    pub fn reread(self, binding: Option<Binding>, now: Timestamp, terms: &Terms) -> Self {
        let found = Self::found(binding, now, terms);
        if found.binding.is_none() || self.leases.is_empty() {
            return found;
        }
        Self {
            leases: self.leases,
            ..found
        }
    }

    /// The binding, unless its time is over.
    pub fn binding(&self, now: Timestamp, terms: &Terms) -> Option<&Binding> {
        let live = |due: &Timestamp| now < *due;
        self.due(terms).filter(live).and(self.binding.as_ref())
    }

    /// When [`Event::Lapse`] is due: never later than the binding's end, but possibly before it.
    pub fn due(&self, terms: &Terms) -> Option<Timestamp> {
        let binding = self.binding.as_ref()?;
        let leased = self.leases.until();
        Some(match binding.state {
            BindingState::Provisional { .. } => leased.unwrap_or(binding.last_end),
            BindingState::Confirmed => leased.max(Some(binding.last_end))? + terms.idle_ttl,
        })
    }

    /// Whether a request of the conversation is in flight, as far as is known.
    pub fn is_in_flight(&self, now: Timestamp) -> bool {
        self.leases.until().is_some_and(|until| now < until)
    }

    /// Takes one event. On an error nothing has happened.
    pub fn apply(
        &self,
        event: &Event<'_>,
        now: Timestamp,
        terms: &Terms,
    ) -> Result<Transition, NotBound> {
        let mut next = self.clone();
        let expired = next.lapse(now, terms);
        let outcome = match *event {
            Event::Acquire {
                key,
                proposed,
                owner,
                actor,
            } => {
                next.leases.take(actor, now + terms.lease);
                match next.binding {
                    Some(_) => Outcome::Joined,
                    None => {
                        let fresh = first_placement(key, proposed, owner, actor, now, terms);
                        next.binding = Some(fresh);
                        Outcome::Created
                    }
                }
            }
            Event::Confirm {
                asked,
                observed,
                evidence,
                actor,
            } => {
                let binding = next.binding.as_mut().ok_or(NotBound)?;
                confirm(binding, asked, observed, evidence, actor)
            }
            Event::Rebind { to, reason, actor } => {
                let binding = next.binding.as_mut().ok_or(NotBound)?;
                let until = now + terms.lease;
                rebind(binding, to, reason, actor, until);
                next.leases.take(actor, until);
                Outcome::Moved
            }
            Event::Release { target, end, actor } => next.release(target, end, actor, now),
            Event::Renew { actor } => {
                if next.binding.is_some() {
                    next.leases.renew(actor, now + terms.lease);
                }
                Outcome::Unchanged
            }
            Event::Lapse if expired => Outcome::Expired,
            Event::Lapse => Outcome::Unchanged,
            Event::Reassign { to, actor } => {
                let binding = next.binding.as_mut().ok_or(NotBound)?;
                told::reassign(binding, to, actor)
            }
            Event::Unbind => next.unbind().map(|()| Outcome::Unbound)?,
            Event::MakeRoom => next.make_room(),
            Event::Import { binding } => next.import(binding, now, terms),
        };
        if let (Outcome::Moved | Outcome::Followed, Some(binding)) = (outcome, &mut next.binding) {
            binding.since = now;
        }
        Ok(self.settle(next, outcome, terms))
    }

    /// Ends what time has ended; true when that was the binding.
    fn lapse(&mut self, now: Timestamp, terms: &Terms) -> bool {
        let ended = self.leases.lapse(now);
        let Some(binding) = &mut self.binding else {
            return false;
        };
        // A router that fell silent may have streamed until its lease ended.
        binding.last_end = ended.unwrap_or(binding.last_end).max(binding.last_end);
        let over = match binding.state {
            BindingState::Provisional { .. } => true,
            BindingState::Confirmed => binding.last_end + terms.idle_ttl <= now,
        };
        if over && self.leases.is_empty() {
            self.binding = None;
            return true;
        }
        false
    }

    fn release(
        &mut self,
        target: &Target,
        end: TurnEnd,
        actor: &InstanceId,
        now: Timestamp,
    ) -> Outcome {
        self.leases.give_back(actor);
        let Some(binding) = &mut self.binding else {
            return Outcome::Unchanged;
        };
        let mut outcome = Outcome::Unchanged;
        if let TurnEnd::Served { held } = end {
            binding.last_end = now;
            if binding.target == *target {
                // Served is served, also where the word of the first byte was lost.
                binding.state = BindingState::Confirmed;
                if binding.owner == Owner::Router {
                    binding.evidence = binding.evidence.max(Evidence::Asked);
                }
                binding.held = held;
                binding.turns = binding.turns.saturating_add(1);
                outcome = Outcome::Touched;
            }
        }
        let unserved = matches!(binding.state, BindingState::Provisional { .. });
        if unserved && self.leases.is_empty() {
            self.binding = None;
            outcome = Outcome::Freed;
        }
        outcome
    }

    /// Compares with what is written, and decides whether the difference is worth a write.
    fn settle(&self, mut next: Self, outcome: Outcome, terms: &Terms) -> Transition {
        let write = match (&self.binding, &next.binding) {
            (None, None) => Write::Nothing,
            (Some(_), None) => Write::Delete,
            (Some(before), Some(now))
                if outcome != Outcome::Created
                    && !differs(before, now)
                    && !self.written.is_some_and(|it| it.is_outdated(now, terms)) =>
            {
                Write::Nothing
            }
            (_, Some(now)) => Write::Put(now.clone()),
        };
        if write != Write::Nothing {
            next.written = next.binding.as_ref().map(Touch::of);
        }
        Transition {
            next,
            write,
            outcome,
        }
    }
}

fn first_placement(
    key: &ConversationKey,
    proposed: &Target,
    owner: Owner,
    actor: &InstanceId,
    now: Timestamp,
    terms: &Terms,
) -> Binding {
    Binding {
        key: key.clone(),
        target: proposed.clone(),
        owner,
        state: BindingState::Provisional {
            lease_until: now + terms.lease,
        },
        evidence: Evidence::None,
        moved: None,
        since: now,
        actor: actor.clone(),
        held: Tokens::ZERO,
        turns: 0,
        last_end: now,
    }
}

fn confirm(
    binding: &mut Binding,
    asked: &Target,
    observed: &Target,
    evidence: Evidence,
    actor: &InstanceId,
) -> Outcome {
    let first = matches!(binding.state, BindingState::Provisional { .. });
    if binding.target == *observed {
        binding.state = BindingState::Confirmed;
        binding.evidence = binding.evidence.max(evidence);
        if first {
            actor.clone_into(&mut binding.actor);
        }
        return Outcome::Confirmed;
    }
    // A turn sent elsewhere, before a move or beside the binding, says nothing about it; nor does anything
    // but the engine's own word, and an engine can only choose among its ranks.
    let is_about_this = binding.target == *asked
        && evidence.is_of_the_engine()
        && observed.worker == asked.worker
        && observed.epoch == asked.epoch;
    if !is_about_this {
        return Outcome::Unchanged;
    }
    // What no evidence had shown before is learnt; it contradicts nothing.
    let unknown = first || binding.evidence == Evidence::None;
    let learns = binding.owner == Owner::Engine && unknown;
    if binding.owner == Owner::Router && binding.moved == Some(MoveReason::Observed) {
        return Outcome::Contradicted;
    }
    binding.target = observed.clone();
    binding.state = BindingState::Confirmed;
    binding.evidence = evidence;
    binding.actor = actor.clone();
    if learns {
        // What the turn has left was left there all along.
        return Outcome::Confirmed;
    }
    binding.held = Tokens::ZERO;
    binding.moved = Some(MoveReason::Observed);
    Outcome::Followed
}

fn rebind(
    binding: &mut Binding,
    to: &Target,
    reason: MoveReason,
    actor: &InstanceId,
    lease_until: Timestamp,
) {
    binding.target = to.clone();
    binding.state = BindingState::Provisional { lease_until };
    binding.evidence = Evidence::None;
    binding.moved = Some(reason);
    binding.actor = actor.clone();
    binding.held = Tokens::ZERO;
}

/// Whether two states of a binding differ in more than touches: that is written at once, so that what was before
/// differs from what is written by touches alone.
fn differs(before: &Binding, now: &Binding) -> bool {
    let is_provisional =
        |binding: &Binding| matches!(binding.state, BindingState::Provisional { .. });
    before.target != now.target
        || is_provisional(before) != is_provisional(now)
        || before.moved != now.moved
        || before.since != now.since
        || before.owner != now.owner
}

impl Touch {
    fn of(binding: &Binding) -> Self {
        Self {
            held: binding.held,
            last_end: binding.last_end,
        }
    }

    /// Whether what is now is too far from what is written.
    fn is_outdated(self, now: &Binding, terms: &Terms) -> bool {
        let slack = self.held.as_f64() * HELD_SLACK;
        slack < (now.held.as_f64() - self.held.as_f64()).abs()
            || terms.idle_ttl / TOUCHES_PER_TTL <= now.last_end.since(self.last_end)
    }
}

mod told;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod story;
#[cfg(test)]
mod tests;
