//! What this router alone counts for published policies, and only while one is set that asks for it. Ours neither reads
//! nor feeds it, and no other router hears of it.

mod assigned;
mod blocks;
mod stuck;

use std::collections::HashMap;

use domain::{DecisionId, SequenceHash, Target, Timestamp, Tokens};
use placement::{Keeps, Policy, Stuck, Tally};

use self::assigned::Assigned;
use self::blocks::ActiveBlocks;
use self::stuck::StuckTable;
use crate::{Decision, Reason};

/// The one thing that the policy in force asks for.
#[derive(Debug)]
pub(crate) enum Tallies {
    Nothing,
    Conversations(StuckTable),
    ActiveBlocks(ActiveBlocks),
    Assigned(Assigned),
    /// When each target was last sent a request of which nobody held anything.
    Cold(HashMap<Target, Timestamp>),
}

impl Tallies {
    /// What `policy` asks for, empty.
    pub(crate) fn of(policy: Policy) -> Self {
        match policy.keeps() {
            Keeps::Nothing => Self::Nothing,
            Keeps::Conversations => Self::Conversations(StuckTable::default()),
            Keeps::ActiveBlocks => Self::ActiveBlocks(ActiveBlocks::default()),
            Keeps::Assigned => Self::Assigned(Assigned::default()),
            Keeps::Cold => Self::Cold(HashMap::new()),
        }
    }

    /// Where a conversation is stuck.
    pub(crate) fn stuck(&self, conversation: Option<u64>) -> Option<Stuck> {
        match self {
            Self::Conversations(table) => table.get(conversation?).cloned(),
            Self::Nothing | Self::ActiveBlocks(_) | Self::Assigned(_) | Self::Cold(_) => None,
        }
    }

    /// What is counted at `target`, of a request with these sequence hashes there.
    pub(crate) fn at(&self, target: &Target, hashes: &[SequenceHash], now: Timestamp) -> Tally {
        let mut tally = Tally::default();
        match self {
            Self::Nothing => {}
            Self::Conversations(table) => tally.conversations = table.count(target),
            Self::ActiveBlocks(blocks) => {
                (tally.active_blocks, tally.joined_blocks) = blocks.at(target, hashes);
            }
            Self::Assigned(assigned) => tally.assigned = assigned.at(target, now),
            Self::Cold(cold) => tally.cold_at = cold.get(target).copied(),
        }
        tally
    }

    /// A request goes to `target`, with these sequence hashes there, to compute `uncached` tokens.
    pub(crate) fn placed(
        &mut self,
        decision: &Decision,
        target: &Target,
        hashes: &[SequenceHash],
        uncached: Tokens,
    ) {
        match self {
            Self::Nothing => {}
            Self::Conversations(table) => {
                if let Some(conversation) = decision.request.conversation {
                    let stays = Reason::Policy(placement::Reason::Overflow) == decision.reason;
                    table.turn(conversation, target, decision.request.isl, stays);
                }
            }
            Self::ActiveBlocks(blocks) => blocks.begin(decision.id, target, hashes),
            Self::Assigned(assigned) => assigned.add(target, uncached, decision.at),
            Self::Cold(cold) => {
                let mut candidates = decision.snapshot.candidates.iter();
                if candidates.all(|it| it.held.disk == Tokens::ZERO) {
                    cold.insert(target.clone(), decision.at);
                }
            }
        }
    }

    /// A request has ended, or was never sent.
    pub(crate) fn ended(&mut self, id: DecisionId) {
        if let Self::ActiveBlocks(blocks) = self {
            blocks.end(id);
        }
    }

    /// Forgets what is over, and targets that are no more.
    pub(crate) fn expire(&mut self, now: Timestamp, is_live: impl Fn(&Target) -> bool) {
        match self {
            Self::Nothing | Self::ActiveBlocks(_) => {}
            // Whoever is stuck to a target that is gone finds that out with its next turn.
            Self::Conversations(_) => {}
            Self::Assigned(assigned) => assigned.expire(now),
            Self::Cold(cold) => cold.retain(|target, _| is_live(target)),
        }
    }
}
