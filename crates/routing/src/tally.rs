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

/// What is counted: nothing that no policy asks for.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    conversations: Option<StuckTable>,
    blocks: Option<ActiveBlocks>,
    assigned: Option<Assigned>,
    /// When each target was last sent a request of which nobody held anything.
    cold: Option<HashMap<Target, Timestamp>>,
}

impl Tallies {
    /// From now on also what `policy` asks for.
    pub(crate) fn keep_for(&mut self, policy: Policy) {
        match policy.keeps() {
            Keeps::Nothing => {}
            Keeps::Conversations => _ = self.conversations.get_or_insert_default(),
            Keeps::ActiveBlocks => _ = self.blocks.get_or_insert_default(),
            Keeps::Assigned => _ = self.assigned.get_or_insert_default(),
            Keeps::Cold => _ = self.cold.get_or_insert_default(),
        }
    }

    /// Where a conversation is stuck.
    pub(crate) fn stuck(&self, conversation: Option<u64>) -> Option<Stuck> {
        let table = self.conversations.as_ref()?;
        table.get(conversation?).cloned()
    }

    /// What is counted at `target`, of a request with these sequence hashes there.
    pub(crate) fn at(&self, target: &Target, hashes: &[SequenceHash], now: Timestamp) -> Tally {
        let blocks = self.blocks.as_ref().map(|it| it.at(target, hashes));
        let (active_blocks, joined_blocks) = blocks.unwrap_or_default();
        let conversations = self.conversations.as_ref().map(|it| it.count(target));
        let assigned = self.assigned.as_ref().map(|it| it.at(target, now));
        let cold = self.cold.as_ref();
        Tally {
            conversations: conversations.unwrap_or_default(),
            active_blocks,
            joined_blocks,
            assigned: assigned.unwrap_or_default(),
            cold_at: cold.and_then(|it| it.get(target).copied()),
        }
    }

    /// A request goes to `target`, with these sequence hashes there, to compute `uncached` tokens.
    pub(crate) fn placed(
        &mut self,
        decision: &Decision,
        target: &Target,
        hashes: &[SequenceHash],
        uncached: Tokens,
    ) {
        let request = &decision.request;
        if let (Some(table), Some(conversation)) = (&mut self.conversations, request.conversation) {
            let stays = Reason::Policy(placement::Reason::Overflow) == decision.reason;
            table.turn(conversation, target, request.isl, stays, decision.at);
        }
        if let Some(blocks) = &mut self.blocks {
            blocks.begin(decision.id, target, hashes);
        }
        if let Some(assigned) = &mut self.assigned {
            assigned.add(target, uncached, decision.at);
        }
        if let Some(cold) = &mut self.cold {
            let mut candidates = decision.snapshot.candidates.iter();
            if candidates.all(|it| it.held.disk == Tokens::ZERO) {
                cold.insert(target.clone(), decision.at);
            }
        }
    }

    /// A request has ended, or was never sent.
    pub(crate) fn ended(&mut self, id: DecisionId) {
        if let Some(blocks) = &mut self.blocks {
            blocks.end(id);
        }
    }

    /// Forgets what is over. Whoever is stuck to a target that is gone finds that out with its next turn.
    pub(crate) fn expire(&mut self, now: Timestamp, is_live: impl Fn(&Target) -> bool) {
        if let Some(table) = &mut self.conversations {
            table.expire(now);
        }
        if let Some(assigned) = &mut self.assigned {
            assigned.expire(now);
        }
        if let Some(cold) = &mut self.cold {
            cold.retain(|target, _| is_live(target));
        }
    }
}
