//! What operators and the store's bound do to a binding. None of it needs a turn in flight, and none gives a lease.

use domain::{InstanceId, Target, Timestamp, Tokens};

use super::{NotBound, Outcome, Standing, Terms};
use crate::leases::Leases;
use crate::{Binding, BindingState, Evidence, MoveReason};

/// The binding stands at its new target as if it had been served there: the next turn follows it, and until then
/// it lives as long as any idle one. Turns in flight at the old target say nothing about the new one.
pub(super) fn reassign(binding: &mut Binding, to: &Target, actor: &InstanceId) -> Outcome {
    binding.state = BindingState::Confirmed;
    binding.moved = Some(MoveReason::Operator);
    actor.clone_into(&mut binding.actor);
    if binding.target != *to {
        binding.target = to.clone();
        binding.evidence = Evidence::None;
        binding.held = Tokens::ZERO;
    }
    Outcome::Moved
}

impl Standing {
    /// Turns in flight end where they are, and hold nothing any more.
    pub(super) fn unbind(&mut self) -> Result<(), NotBound> {
        self.binding.take().ok_or(NotBound)?;
        self.leases = Leases::default();
        Ok(())
    }

    pub(super) fn make_room(&mut self) -> Outcome {
        if !self.leases.is_empty() || self.binding.take().is_none() {
            return Outcome::Unchanged;
        }
        Outcome::MadeRoom
    }

    /// Takes `binding` as confirmed, idle since the end it names, which cannot lie in the future; one whose time is
    /// over stays out.
    pub(super) fn import(&mut self, binding: &Binding, now: Timestamp, terms: &Terms) -> Outcome {
        let last_end = binding.last_end.min(now);
        if self.binding.is_some() || last_end + terms.idle_ttl <= now {
            return Outcome::Unchanged;
        }
        self.binding = Some(Binding {
            state: BindingState::Confirmed,
            since: binding.since.min(last_end),
            last_end,
            ..binding.clone()
        });
        Outcome::Created
    }
}
