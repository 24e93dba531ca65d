//! What a conversation's binding demands of one turn.

use affinity::{
    Binding, ConversationKey, Liveness, Mode, MoveReason, Owner, Patience, Plan, Prices, plan_turn,
};
use domain::{Target, TargetState, Tokens};
use placement::{Barred, Candidate, Choice, Snapshot};
use xxhash_rust::xxh3::xxh3_64;

/// What a plan is made from.
pub(crate) struct Asked<'a> {
    pub(crate) mode: Mode,
    pub(crate) patience: Patience,
    pub(crate) binding: Option<&'a Binding>,
    /// Who decides the ranks of the bound worker.
    pub(crate) owner: Owner,
    /// Whether the bound worker heeds the ranks it is asked for.
    pub(crate) trusted: bool,
    pub(crate) snapshot: &'a Snapshot,
    /// What the policy would choose.
    pub(crate) choice: Option<&'a Choice>,
    pub(crate) isl: Tokens,
    /// What any target was ever known to hold of the prompt.
    pub(crate) stored: Tokens,
}

/// Decides whether a turn is served by its bound target, given the fleet as it is now.
pub(crate) fn plan(asked: &Asked<'_>) -> Plan {
    let Asked { mode, snapshot, .. } = *asked;
    let Some(bound) = asked.binding.filter(|_| mode != Mode::Off) else {
        return Plan::New;
    };
    let candidate = snapshot
        .candidates
        .iter()
        .find(|it| it.target == bound.target);
    match candidate.and_then(|it| it.barred) {
        Some(Barred::Tried) => return Plan::Rebind(MoveReason::Failed),
        // What it holds is still there: this turn goes elsewhere, and its successor comes back.
        Some(Barred::NoAdapter) => return Plan::Excursion,
        Some(Barred::FailedLately) | None => {}
    }
    // Of a rank that is not known nothing can be said. Where ranks are ignored each turn leaves its prefix at another:
    // to go after it would change the binding after every turn, in vain.
    let known = candidate.filter(|_| bound.knows_rank() && asked.trusted);
    let overlap = known.and_then(|it| overlap(snapshot, it, asked.isl, asked.stored));
    let liveness = liveness(snapshot, &bound.target);
    let prices = candidate.and_then(|it| prices(asked, it));
    plan_turn(
        mode,
        asked.binding,
        liveness,
        overlap,
        prices,
        &asked.patience,
    )
}

/// The prices of the bound target and of the policy's choice, where that is elsewhere.
fn prices(asked: &Asked<'_>, bound: &Candidate) -> Option<Prices> {
    let choice = asked.choice?;
    let elsewhere = choice.place.target()?;
    let is_elsewhere = match asked.owner {
        Owner::Router => *elsewhere != bound.target,
        // Its engine chooses among its ranks.
        Owner::Engine => elsewhere.worker != bound.target.worker,
    };
    let score = |target: &Target| choice.scores.iter().find(|it| it.target == *target);
    let there = score(elsewhere).filter(|_| is_elsewhere)?;
    let here = score(&bound.target)?;
    Some(Prices {
        wait: here.terms.wait(),
        wait_elsewhere: there.terms.wait(),
        cost: here.cost,
        cost_elsewhere: there.cost,
        recompute: here.terms.credited.as_f64() / bound.prefill_rate,
    })
}

fn liveness(snapshot: &Snapshot, target: &Target) -> Liveness {
    let mut candidates = snapshot.candidates.iter();
    let later =
        |it: &Candidate| it.target.worker == target.worker && it.target.epoch > target.epoch;
    match snapshot.candidates.iter().find(|it| it.target == *target) {
        None if candidates.any(later) => Liveness::Fenced,
        None => Liveness::Gone,
        Some(candidate) => match candidate.state {
            TargetState::Ready | TargetState::Suspect | TargetState::Partial => Liveness::Live,
            // What it has stays until it is idle.
            TargetState::Draining => Liveness::Live,
            TargetState::Leaving => Liveness::Draining,
            TargetState::Warming | TargetState::Gone => Liveness::Gone,
        },
    }
}

/// What the index says of the bound target; none where it is silent or knows that it does not know all.
fn overlap(
    snapshot: &Snapshot,
    bound: &Candidate,
    isl: Tokens,
    stored: Tokens,
) -> Option<affinity::Overlap> {
    if !bound.index_known || !bound.has_events || bound.state != TargetState::Ready {
        return None;
    }
    let block_size = bound.block_size;
    let others = snapshot.candidates.iter();
    let elsewhere = others
        .filter(|it| it.target != bound.target && it.takes_new())
        .map(|it| it.held.disk);
    Some(affinity::Overlap {
        prompt: block_size.tokens(block_size.cacheable_blocks(isl)),
        bound: bound.held.disk.max(bound.in_flight),
        best_elsewhere: elsewhere.max().unwrap_or(Tokens::ZERO),
        stored,
        block_size,
    })
}

/// A number that all routers give the same conversation, for rendezvous.
pub fn conversation_hash(key: &ConversationKey) -> u64 {
    let texts = [
        key.tenant.as_str(),
        key.model.as_str(),
        key.conversation.as_str(),
    ];
    // No id contains the separator: control characters are refused.
    xxh3_64(texts.join("\0").as_bytes())
}
