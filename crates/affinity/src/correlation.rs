//! `x-correlation-id`: some clients send one for a whole conversation, others one for each request. It names a
//! conversation once a later request with it extends the earlier one's prompt.

use std::time::Duration;

use domain::{SequenceHash, Timestamp};
use xxhash_rust::xxh3::xxh3_128;

use crate::ConversationKey;
use crate::recent::Recent;

/// Ids remembered, about 50 bytes each: as many as requests come in some minutes where each has its own.
const MAX_IDS: usize = 131_072;
/// How long at least one is remembered: as long as a binding lives.
const PERIOD: Duration = Duration::from_secs(30 * 60);

/// What recent correlation ids were sent with.
#[derive(Debug)]
pub struct Correlations {
    /// By a hash of tenant, model and id.
    seen: Recent<u128, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The last block of the last prompt.
    end: SequenceHash,
    /// How many blocks that prompt had, at least one.
    blocks: usize,
    /// Whether the id names a conversation.
    proven: bool,
}

impl Default for Correlations {
    fn default() -> Self {
        Self {
            seen: Recent::new(MAX_IDS, PERIOD),
        }
    }
}

impl Correlations {
    /// Whether the id, which `key` holds for a conversation's, is one, given the blocks of the request that
    /// it came with. A prompt that is merely sent again proves nothing.
    pub fn is_proven(
        &self,
        key: &ConversationKey,
        hashes: &[SequenceHash],
        now: Timestamp,
    ) -> bool {
        let seen = self.seen.get(&digest(key), now);
        seen.is_some_and(|it| {
            let extends = it.blocks < hashes.len() && hashes[it.blocks - 1] == it.end;
            it.proven || extends
        })
    }

    /// Remembers what the id came with, and whether that has proven it.
    pub fn record(
        &mut self,
        key: &ConversationKey,
        hashes: &[SequenceHash],
        proven: bool,
        now: Timestamp,
    ) {
        if let Some(end) = hashes.last() {
            let seen = Seen {
                end: *end,
                blocks: hashes.len(),
                proven,
            };
            self.seen.put(digest(key), seen, now);
        }
    }
}

fn digest(key: &ConversationKey) -> u128 {
    let texts = [
        key.tenant.as_str(),
        key.model.as_str(),
        key.conversation.as_str(),
    ];
    // No id contains the separator: control characters are refused.
    xxh3_128(texts.join("\0").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> ConversationKey {
        ConversationKey {
            tenant: "t".parse().unwrap(),
            model: "m".parse().unwrap(),
            conversation: id.parse().unwrap(),
        }
    }

    fn hashes(range: std::ops::Range<u64>) -> Vec<SequenceHash> {
        range.map(SequenceHash::new).collect()
    }

    /// Whether the last of these prompts, from one number to another and each with the same id, finds it proven.
    fn proven_after(prompts: &[(u64, u64)]) -> bool {
        let mut correlations = Correlations::default();
        let mut proven = false;
        for (from, to) in prompts {
            let hashes = hashes(*from..*to);
            proven = correlations.is_proven(&key("c"), &hashes, Timestamp::ZERO);
            correlations.record(&key("c"), &hashes, proven, Timestamp::ZERO);
        }
        proven
    }

    #[test]
    fn an_id_is_a_conversations_once_a_prompt_is_extended() {
        assert!(!proven_after(&[(0, 4)]), "the first says nothing");
        assert!(proven_after(&[(0, 4), (0, 5)]));
        assert!(!proven_after(&[(0, 4), (0, 4)]), "sent again");
        assert!(!proven_after(&[(0, 4), (0, 3)]), "shorter");
        assert!(!proven_after(&[(0, 4), (1, 9)]), "another prompt");
        assert!(
            !proven_after(&[(0, 4), (1, 9), (0, 5)]),
            "the last one counts"
        );
        assert!(!proven_after(&[(0, 0), (0, 5)]), "no block to extend");
        assert!(
            proven_after(&[(0, 4), (0, 5), (7, 8)]),
            "proven stays proven"
        );
    }

    #[test]
    fn another_id_or_model_is_not_proven_by_it() {
        let mut correlations = Correlations::default();
        correlations.record(&key("c"), &hashes(0..4), false, Timestamp::ZERO);
        let proven = |key: &ConversationKey, now| correlations.is_proven(key, &hashes(0..5), now);
        assert!(!proven(&key("d"), Timestamp::ZERO));
        let other = ConversationKey {
            model: "n".parse().unwrap(),
            ..key("c")
        };
        assert!(!proven(&other, Timestamp::ZERO));
        assert!(proven(&key("c"), Timestamp::ZERO));
        assert!(!proven(&key("c"), Timestamp::ZERO + PERIOD * 2));
    }
}
