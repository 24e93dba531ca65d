//! A table of conversations and where each is stuck: private to one router, without leases, the least recently used
//! forgotten when it is full.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use domain::{Target, Timestamp, Tokens};
use placement::Stuck;

/// As many as TensorRT-LLM's and Dynamo's tables hold; 200 bytes each.
const MAX_CONVERSATIONS: usize = 65_536;
/// Silent for so long, a conversation no longer counts as live, as nobody says that it has ended. It stays stuck.
const LIVE: Duration = Duration::from_secs(600);

/// Where conversations are stuck.
#[derive(Debug, Default)]
pub(crate) struct StuckTable {
    conversations: HashMap<u64, Entry>,
    /// Conversations by their last use.
    by_use: BTreeMap<u64, u64>,
    uses: u64,
    /// Live conversations by their last turn, and how many of them are stuck to each target.
    live: BTreeSet<(Timestamp, u64)>,
    counts: HashMap<Target, u32>,
}

#[derive(Debug)]
struct Entry {
    stuck: Stuck,
    used: u64,
    last: Timestamp,
}

impl StuckTable {
    /// Where a conversation is stuck.
    pub(crate) fn get(&self, conversation: u64) -> Option<&Stuck> {
        self.conversations.get(&conversation).map(|it| &it.stuck)
    }

    /// How many live ones are stuck to a target.
    pub(crate) fn count(&self, target: &Target) -> u32 {
        self.counts.get(target).copied().unwrap_or(0)
    }

    /// A turn of `isl` tokens was placed at `target`. If its conversation `stays`, it is stuck where it was.
    pub(crate) fn turn(
        &mut self,
        conversation: u64,
        target: &Target,
        isl: Tokens,
        stays: bool,
        now: Timestamp,
    ) {
        let before = self.forget(conversation);
        if before.is_none()
            && self.conversations.len() >= MAX_CONVERSATIONS
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = *oldest;
            self.forget(oldest);
        }
        let turns = before.as_ref().map_or(0, |it| it.turns);
        let target = match before.filter(|_| stays) {
            Some(before) => before.target,
            None => target.clone(),
        };
        *self.counts.entry(target.clone()).or_default() += 1;
        self.live.insert((now, conversation));
        self.uses += 1;
        self.by_use.insert(self.uses, conversation);
        let entry = Entry {
            stuck: Stuck {
                target,
                turns: turns.saturating_add(1),
                isl,
            },
            used: self.uses,
            last: now,
        };
        self.conversations.insert(conversation, entry);
    }

    /// Conversations that have been silent for long count no more.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        while let Some((last, conversation)) = self.live.first().copied() {
            if now.since(last) < LIVE {
                break;
            }
            self.end(conversation, last);
        }
    }

    fn forget(&mut self, conversation: u64) -> Option<Stuck> {
        let last = self.conversations.get(&conversation)?.last;
        self.end(conversation, last);
        let entry = self.conversations.remove(&conversation)?;
        self.by_use.remove(&entry.used);
        Some(entry.stuck)
    }

    /// It is live no more.
    fn end(&mut self, conversation: u64, last: Timestamp) {
        let was_live = self.live.remove(&(last, conversation));
        let Some(entry) = self.conversations.get(&conversation).filter(|_| was_live) else {
            return;
        };
        let target = &entry.stuck.target;
        if let Some(count) = self.counts.get_mut(target) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(rank: u64) -> Target {
        format!("w1#1/{rank}").parse().expect("a target")
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_live_conversations_in_the_table(
            turns in prop::collection::vec((0..9_u64, 0..4_u64, any::<bool>(), 0..300_u64), 0..60)
        ) {
            let mut table = StuckTable::default();
            let mut naive: HashMap<u64, (u64, u32, Timestamp)> = HashMap::new();
            let mut now = Timestamp::ZERO;
            for (conversation, rank, stays, seconds) in turns {
                now += Duration::from_secs(seconds);
                table.turn(conversation, &target(rank), Tokens::new(rank), stays, now);
                table.expire(now);
                let before = naive.get(&conversation).copied();
                let stuck = before.filter(|_| stays).map_or(rank, |it| it.0);
                naive.insert(conversation, (stuck, before.map_or(1, |it| it.1 + 1), now));
                for rank in 0..4 {
                    let live = naive.values().filter(|it| now.since(it.2) < LIVE);
                    let expected = live.filter(|it| it.0 == rank).count();
                    prop_assert_eq!(table.count(&target(rank)) as usize, expected);
                }
                for (conversation, (rank, turns, _)) in &naive {
                    let stuck = table.get(*conversation).expect("it had a turn");
                    prop_assert_eq!((&stuck.target, stuck.turns), (&target(*rank), *turns));
                }
            }
            prop_assert_eq!(table.by_use.len(), table.conversations.len());
        }
    }

    #[test]
    fn the_least_recently_used_is_forgotten_when_the_table_is_full() {
        let mut table = StuckTable::default();
        let most = MAX_CONVERSATIONS as u64;
        for conversation in 0..most {
            table.turn(
                conversation,
                &target(0),
                Tokens::ZERO,
                false,
                Timestamp::ZERO,
            );
        }
        table.turn(0, &target(0), Tokens::ZERO, false, Timestamp::ZERO);
        assert_eq!(u64::from(table.count(&target(0))), most, "none is lost yet");
        table.turn(most, &target(1), Tokens::ZERO, false, Timestamp::ZERO);
        assert_eq!(table.get(1), None);
        assert!(table.get(0).is_some() && table.get(2).is_some());
        assert_eq!(u64::from(table.count(&target(0))), most - 1);
    }
}
