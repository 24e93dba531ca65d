//! Whether a turn keeps to its conversation's binding.

use domain::{BlockSize, Tokens};

use crate::{Binding, MoveReason};

/// How much a model's bindings mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nothing: none is read or written.
    Off,
    /// A live bound target serves the turn.
    #[default]
    Hard,
}

/// What a turn does about its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Place it freely, and bind the conversation there if bindings are on.
    New,
    /// Serve it at the bound target.
    Keep,
    /// Place it freely, and move the binding there.
    Rebind(MoveReason),
}

/// What has become of a bound target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Liveness {
    /// It serves.
    Live,
    /// Its worker has a later incarnation.
    Fenced,
    /// It is not there.
    Gone,
    /// It is being drained.
    Draining,
}

/// What the index says of a turn's prompt. There is none where the index cannot be reached, or where its
/// claims about the bound target are incomplete: a prefix that it does not know of may be there all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Full-block tokens of the prompt itself.
    pub prompt: Tokens,
    /// What the bound target holds of them.
    pub bound: Tokens,
    /// The most that any other eligible target holds of them.
    pub best_elsewhere: Tokens,
    /// Tokens per block.
    pub block_size: BlockSize,
}

/// Decides what a turn does about its conversation's live binding, if it has one.
pub fn plan_turn(
    mode: Mode,
    binding: Option<&Binding>,
    liveness: Liveness,
    overlap: Option<Overlap>,
) -> Plan {
    let Some(binding) = binding.filter(|_| mode == Mode::Hard) else {
        return Plan::New;
    };
    match liveness {
        Liveness::Fenced => Plan::Rebind(MoveReason::Fenced),
        Liveness::Gone => Plan::Rebind(MoveReason::Gone),
        Liveness::Draining => Plan::Rebind(MoveReason::Drained),
        Liveness::Live if overlap.is_some_and(|it| it.is_lost(binding.held)) => {
            Plan::Rebind(MoveReason::PrefixLost)
        }
        Liveness::Live => Plan::Keep,
    }
}

impl Overlap {
    /// Whether the bound target has lost what the last turn left there: it holds less than half of it, and
    /// another holds more. Where nobody does, the prefix is computed anew wherever the turn goes.
    ///
    /// A turn that carries less than the last one cannot find more than it carries; and the last block may
    /// not have been announced yet.
    fn is_lost(&self, held: Tokens) -> bool {
        let last_block = self.block_size.tokens(1);
        let expected = held.min(self.prompt).saturating_sub(last_block);
        self.bound + self.bound < expected && self.bound < self.best_elsewhere
    }
}

#[cfg(test)]
mod tests {
    use domain::Timestamp;

    use super::*;
    use crate::{BindingState, ConversationKey, Evidence, Owner};

    fn binding(held: u64) -> Binding {
        Binding {
            key: ConversationKey {
                tenant: "t".parse().unwrap(),
                model: "m".parse().unwrap(),
                conversation: "c".parse().unwrap(),
            },
            target: "w1#1/0".parse().unwrap(),
            owner: Owner::Router,
            state: BindingState::Confirmed,
            evidence: Evidence::Asked,
            moved: None,
            actor: "r1".parse().unwrap(),
            held: Tokens::new(held),
            turns: 1,
            last_end: Timestamp::ZERO,
        }
    }

    fn check(held: u64, prompt: u64, bound: u64, best_elsewhere: u64, expected: Plan) {
        let overlap = Overlap {
            prompt: Tokens::new(prompt),
            bound: Tokens::new(bound),
            best_elsewhere: Tokens::new(best_elsewhere),
            block_size: BlockSize::new(16).unwrap(),
        };
        let binding = binding(held);
        let plan = plan_turn(Mode::Hard, Some(&binding), Liveness::Live, Some(overlap));
        assert_eq!(plan, expected, "{held} held, {overlap:?}");
    }

    const LOST: Plan = Plan::Rebind(MoveReason::PrefixLost);

    #[test]
    fn a_prefix_is_lost_when_less_than_half_is_left_and_another_holds_more() {
        check(1600, 1760, 1600, 0, Plan::Keep);
        check(1600, 1760, 800, 1600, Plan::Keep);
        check(1600, 1760, 784, 1600, LOST);
        check(1600, 1760, 0, 16, LOST);
    }

    #[test]
    fn a_lost_prefix_that_nobody_holds_keeps_its_target() {
        check(1600, 1760, 0, 0, Plan::Keep);
        check(1600, 1760, 160, 160, Plan::Keep);
    }

    #[test]
    fn a_shorter_turn_is_measured_by_what_it_carries() {
        check(16_000, 320, 320, 336, Plan::Keep);
        check(16_000, 320, 160, 320, Plan::Keep);
        check(16_000, 320, 0, 320, LOST);
    }

    #[test]
    fn nothing_is_lost_before_anything_was_left_or_announced() {
        check(0, 1600, 0, 1600, Plan::Keep);
        check(16, 1600, 0, 1600, Plan::Keep);
    }

    #[test]
    fn a_target_that_cannot_serve_is_left_for_its_own_reason() {
        let binding = binding(1600);
        let plan = |liveness| plan_turn(Mode::Hard, Some(&binding), liveness, None);
        assert_eq!(plan(Liveness::Live), Plan::Keep, "the index is not trusted");
        assert_eq!(plan(Liveness::Fenced), Plan::Rebind(MoveReason::Fenced));
        assert_eq!(plan(Liveness::Gone), Plan::Rebind(MoveReason::Gone));
        assert_eq!(plan(Liveness::Draining), Plan::Rebind(MoveReason::Drained));
    }

    #[test]
    fn without_a_binding_or_with_bindings_off_a_turn_is_new() {
        let binding = binding(1600);
        let new = plan_turn(Mode::Hard, None, Liveness::Live, None);
        let off = plan_turn(Mode::Off, Some(&binding), Liveness::Gone, None);
        assert_eq!((new, off), (Plan::New, Plan::New));
    }
}
