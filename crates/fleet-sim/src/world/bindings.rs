//! The one store of bindings, and routers that are cut off from it for a while.

use std::collections::HashMap;

use affinity::{Binding, ConversationKey, Event, MoveReason, Owner, Standing, Terms, TurnEnd};
use domain::{InstanceId, Target, Timestamp};

use crate::report::BindingCounts;

/// What the store says of a conversation.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// It was not asked: no conversation, or bindings are off.
    NotAsked,
    Unbound,
    Bound(Binding),
    /// It did not answer. What the router had heard of the binding, if there was one.
    Silent(Option<Binding>),
}

/// What is to be written when the store can be reached again.
struct Late {
    key: ConversationKey,
    target: Target,
    end: TurnEnd,
    actor: InstanceId,
}

pub(super) struct Bindings {
    /// Never iterated.
    standings: HashMap<ConversationKey, Standing>,
    terms: Terms,
    /// While some routers are cut off: how many, the first ones, and what changed meanwhile as it was before.
    cut: Option<(usize, HashMap<ConversationKey, Option<Binding>>)>,
    late: Vec<Late>,
    pub(super) counts: BindingCounts,
}

impl Answer {
    pub(super) const fn binding(&self) -> Option<&Binding> {
        match self {
            Self::Bound(binding) => Some(binding),
            Self::Silent(heard) => heard.as_ref(),
            Self::NotAsked | Self::Unbound => None,
        }
    }
}

impl Bindings {
    pub(super) fn new() -> Self {
        Self {
            standings: HashMap::new(),
            // Whoever has a turn in flight here ends it: no silence has to be waited for.
            terms: Terms {
                lease: std::time::Duration::from_secs(1 << 32),
                ..Terms::default()
            },
            cut: None,
            late: Vec::new(),
            counts: BindingCounts::default(),
        }
    }

    /// The first routers are cut off from now on.
    pub(super) fn cut(&mut self, routers: u32) {
        self.cut = Some((routers as usize, HashMap::new()));
    }

    /// All are connected again.
    pub(super) fn heal(&mut self, now: Timestamp) {
        self.cut = None;
        for late in std::mem::take(&mut self.late) {
            self.release(&late.key, &late.target, late.end, &late.actor, 0, now);
        }
    }

    fn is_cut(&self, router: usize) -> bool {
        self.cut.as_ref().is_some_and(|it| router < it.0)
    }

    /// What a conversation is bound to.
    pub(super) fn ask(&self, key: &ConversationKey, router: usize, now: Timestamp) -> Answer {
        let current = self.bound(key, now);
        match &self.cut {
            Some((cut, before)) if router < *cut => {
                let heard = before.get(key).cloned().unwrap_or(current.cloned());
                Answer::Silent(heard)
            }
            _ => current.map_or(Answer::Unbound, |it| Answer::Bound(it.clone())),
        }
    }

    /// The binding of a conversation.
    pub(super) fn bound(&self, key: &ConversationKey, now: Timestamp) -> Option<&Binding> {
        self.standings.get(key)?.binding(now, &self.terms)
    }

    /// A turn begins: the binding it has from now on.
    pub(super) fn acquire(
        &mut self,
        key: &ConversationKey,
        proposed: &Target,
        actor: &InstanceId,
        now: Timestamp,
    ) -> Binding {
        let event = Event::Acquire {
            key,
            proposed,
            owner: Owner::Router,
            actor,
        };
        let created = self.apply(key, &event, now) == Some(affinity::Outcome::Created);
        self.counts.created += u64::from(created);
        let bound = self.bound(key, now);
        bound.expect("what was just acquired is bound").clone()
    }

    /// Moves a binding, if there still is one.
    pub(super) fn rebind(
        &mut self,
        key: &ConversationKey,
        to: &Target,
        reason: MoveReason,
        actor: &InstanceId,
        now: Timestamp,
    ) -> Binding {
        let event = Event::Rebind { to, reason, actor };
        if self.apply(key, &event, now).is_none() {
            return self.acquire(key, to, actor, now);
        }
        self.counts.moved += 1;
        let bound = self.bound(key, now);
        bound.expect("what was just moved is bound").clone()
    }

    /// A turn has ended. A router that is cut off says so when it can.
    pub(super) fn release(
        &mut self,
        key: &ConversationKey,
        target: &Target,
        end: TurnEnd,
        actor: &InstanceId,
        router: usize,
        now: Timestamp,
    ) {
        if self.is_cut(router) {
            self.late.push(Late {
                key: key.clone(),
                target: target.clone(),
                end,
                actor: actor.clone(),
            });
            return;
        }
        self.apply(key, &Event::Release { target, end, actor }, now);
    }

    /// None where the conversation is not bound.
    fn apply(
        &mut self,
        key: &ConversationKey,
        event: &Event<'_>,
        now: Timestamp,
    ) -> Option<affinity::Outcome> {
        let standing = self.standings.entry(key.clone()).or_default();
        let done = standing.apply(event, now, &self.terms).ok()?;
        if let Some((_, before)) = &mut self.cut {
            let binding = standing.binding(now, &self.terms);
            before
                .entry(key.clone())
                .or_insert_with(|| binding.cloned());
        }
        *standing = done.next;
        Some(done.outcome)
    }
}
