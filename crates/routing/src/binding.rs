//! What a conversation's binding demands of one turn.

use affinity::{Binding, ConversationKey, Liveness, Mode, MoveReason, Plan, plan_turn};
use domain::{Target, TargetState, Tokens};
use placement::{Barred, Candidate, Snapshot};
use xxhash_rust::xxh3::xxh3_64;

/// Decides whether a turn is served by its bound target, given the fleet as it is now.
pub(crate) fn plan(
    mode: Mode,
    binding: Option<&Binding>,
    snapshot: &Snapshot,
    isl: Tokens,
) -> Plan {
    let Some(bound) = binding.filter(|_| mode == Mode::Hard) else {
        return Plan::New;
    };
    let candidate = snapshot
        .candidates
        .iter()
        .find(|it| it.target == bound.target);
    if candidate.is_some_and(|it| it.barred == Some(Barred::Tried)) {
        return Plan::Rebind(MoveReason::Failed);
    }
    let overlap = candidate.and_then(|it| overlap(snapshot, it, isl));
    plan_turn(mode, binding, liveness(snapshot, &bound.target), overlap)
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
            TargetState::Draining => Liveness::Draining,
            TargetState::Warming | TargetState::Gone => Liveness::Gone,
        },
    }
}

/// What the index says of the bound target; none where it is silent or knows that it does not know all.
fn overlap(snapshot: &Snapshot, bound: &Candidate, isl: Tokens) -> Option<affinity::Overlap> {
    if !snapshot.index_known || !bound.has_events || bound.state != TargetState::Ready {
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
        block_size,
    })
}

/// A number that all routers give the same conversation, for rendezvous.
pub(crate) fn conversation_hash(key: &ConversationKey) -> u64 {
    let texts = [
        key.tenant.as_str(),
        key.model.as_str(),
        key.conversation.as_str(),
    ];
    // No id contains the separator: control characters are refused.
    xxh3_64(texts.join("\0").as_bytes())
}
