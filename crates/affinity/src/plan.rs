//! Whether a turn keeps to its conversation's binding.

use domain::{BlockSize, Tokens};

use crate::{Binding, Mode, MoveReason};

/// What a turn does about its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Place it freely, and bind the conversation there if bindings are on.
    New,
    /// Serve it at the bound target.
    Keep,
    /// Place it freely, and move the binding there.
    Rebind(MoveReason),
    /// Place it freely this once: the binding stays.
    Excursion,
}

/// What a turn costs at its bound target and at the best other one, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Until the first token at the bound target: its queue, and what it has to compute.
    pub wait: f64,
    /// The same elsewhere, where more has to be computed.
    pub wait_elsewhere: f64,
    /// All that the turn costs the fleet at the bound target: what it waits and what it makes others wait.
    pub cost: f64,
    /// The same elsewhere, where more has to be computed.
    pub cost_elsewhere: f64,
    /// Computing again what the bound target holds of the prompt.
    pub recompute: f64,
}

/// When a turn leaves a bound target that could serve it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// `T_move`, in seconds: a hard binding lets one turn go elsewhere if it has its first token there by more than
    /// this sooner, and if that costs the fleet by more than this less: what is computed again is paid by all.
    pub wait: f64,
    /// Seconds by which a soft binding stays beyond the price of computing its prefix again: without any, two short
    /// prompts of nearly equal costs would go back and forth.
    pub hysteresis: f64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            wait: 2.0,
            hysteresis: 0.25,
        }
    }
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
    /// What any target was ever known to hold of them.
    pub stored: Tokens,
    /// Tokens per block.
    pub block_size: BlockSize,
}

/// Decides what a turn does about its conversation's live binding, if it has one.
pub fn plan_turn(
    mode: Mode,
    binding: Option<&Binding>,
    liveness: Liveness,
    overlap: Option<Overlap>,
    prices: Option<Prices>,
    patience: &Patience,
) -> Plan {
    let Some(binding) = binding.filter(|_| mode != Mode::Off) else {
        return Plan::New;
    };
    match liveness {
        Liveness::Fenced => Plan::Rebind(MoveReason::Fenced),
        Liveness::Gone => Plan::Rebind(MoveReason::Gone),
        Liveness::Draining => Plan::Rebind(MoveReason::Drained),
        Liveness::Live if overlap.is_some_and(|it| it.is_lost(binding.held)) => {
            Plan::Rebind(MoveReason::PrefixLost)
        }
        Liveness::Live => match (mode, prices) {
            (Mode::Hard, Some(it)) if it.is_worth_a_way(patience) => Plan::Excursion,
            (Mode::Soft, Some(it)) if it.is_cheaper_elsewhere(patience) => {
                Plan::Rebind(MoveReason::Cheaper)
            }
            (Mode::Hard | Mode::Soft | Mode::Off, _) => Plan::Keep,
        },
    }
}

impl Prices {
    /// Whether the turn gains more than the patience by leaving, and the fleet does too.
    fn is_worth_a_way(&self, patience: &Patience) -> bool {
        self.wait_elsewhere + patience.wait < self.wait
            && self.cost_elsewhere + patience.wait < self.cost
    }

    /// By more than the bonus of the bound target. The cost elsewhere has the recomputation in it already, so that a
    /// binding that has moved for being cheaper does not move back before the difference has turned.
    fn is_cheaper_elsewhere(&self, patience: &Patience) -> bool {
        self.cost_elsewhere + self.recompute + patience.hysteresis < self.cost
    }
}

impl Overlap {
    /// Whether the bound target has lost what the last turn left there: it holds less than half of it, and another
    /// holds more, or it was there and nobody does: then it is computed anew wherever the turn goes, and best where
    /// there is room for it.
    ///
    /// A turn that carries less than the last one cannot find more than it carries; and the last block may
    /// not have been announced yet.
    fn is_lost(&self, held: Tokens) -> bool {
        let last_block = self.block_size.tokens(1);
        let expected = held.min(self.prompt).saturating_sub(last_block);
        let is_little = self.bound + self.bound < expected;
        is_little && (self.bound < self.best_elsewhere || expected <= self.stored)
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
            since: Timestamp::ZERO,
            actor: "r1".parse().unwrap(),
            held: Tokens::new(held),
            turns: 1,
            last_end: Timestamp::ZERO,
        }
    }

    fn check(held: u64, prompt: u64, bound: u64, best_elsewhere: u64, expected: Plan) {
        check_stored((held, prompt, bound, best_elsewhere), 0, expected);
    }

    fn check_stored(
        (held, prompt, bound, best_elsewhere): (u64, u64, u64, u64),
        stored: u64,
        expected: Plan,
    ) {
        let overlap = Overlap {
            prompt: Tokens::new(prompt),
            bound: Tokens::new(bound),
            best_elsewhere: Tokens::new(best_elsewhere),
            stored: Tokens::new(stored),
            block_size: BlockSize::new(16).unwrap(),
        };
        let binding = binding(held);
        let plan = plan_turn(
            Mode::Hard,
            Some(&binding),
            Liveness::Live,
            Some(overlap),
            None,
            &Patience::default(),
        );
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
    fn a_prefix_that_nobody_holds_ties_to_no_target_where_it_was_known_to_be() {
        check(1600, 1760, 0, 0, Plan::Keep);
        check(1600, 1760, 160, 160, Plan::Keep);
        check_stored((1600, 1760, 160, 160), 1568, Plan::Keep);
        check_stored((1600, 1760, 160, 160), 1584, LOST);
        check_stored((1600, 1760, 800, 160), 1600, Plan::Keep);
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
        let patience = Patience::default();
        let plan =
            |liveness| plan_turn(Mode::Hard, Some(&binding), liveness, None, None, &patience);
        assert_eq!(plan(Liveness::Live), Plan::Keep, "the index is not trusted");
        assert_eq!(plan(Liveness::Fenced), Plan::Rebind(MoveReason::Fenced));
        assert_eq!(plan(Liveness::Gone), Plan::Rebind(MoveReason::Gone));
        assert_eq!(plan(Liveness::Draining), Plan::Rebind(MoveReason::Drained));
    }

    #[test]
    fn without_a_binding_or_with_bindings_off_a_turn_is_new() {
        let binding = binding(1600);
        let patience = Patience::default();
        let new = plan_turn(Mode::Hard, None, Liveness::Live, None, None, &patience);
        let off = plan_turn(
            Mode::Off,
            Some(&binding),
            Liveness::Gone,
            None,
            None,
            &patience,
        );
        assert_eq!((new, off), (Plan::New, Plan::New));
    }

    fn priced(mode: Mode, cost: f64, elsewhere: f64, recompute: f64) -> Plan {
        let prices = Prices {
            wait: cost,
            wait_elsewhere: elsewhere,
            cost,
            cost_elsewhere: elsewhere,
            recompute,
        };
        let binding = binding(1600);
        let patience = Patience::default();
        plan_turn(
            mode,
            Some(&binding),
            Liveness::Live,
            None,
            Some(prices),
            &patience,
        )
    }

    #[test]
    fn a_hard_binding_lets_a_turn_go_only_for_more_than_the_patience() {
        assert_eq!(priced(Mode::Hard, 2.9, 1.0, 0.0), Plan::Keep);
        assert_eq!(priced(Mode::Hard, 3.1, 1.0, 9.0), Plan::Excursion);
        assert_eq!(priced(Mode::Hard, f64::NAN, 1.0, 0.0), Plan::Keep);
    }

    #[test]
    fn a_soft_binding_moves_only_for_more_than_its_prefix_is_worth() {
        let cheaper = Plan::Rebind(MoveReason::Cheaper);
        assert_eq!(priced(Mode::Soft, 2.0, 1.0, 1.0), Plan::Keep);
        assert_eq!(priced(Mode::Soft, 2.3, 1.0, 1.0), cheaper);
        assert_eq!(priced(Mode::Soft, 1.2, 1.0, 0.0), Plan::Keep, "hysteresis");
    }
}
