//! What a run showed: tokens from the engines' caches, beside those of one cache without end.

use std::collections::HashSet;
use std::time::Duration;

use domain::{BlockSize, HashSeed, SequenceHash, block_hashes, sequence_hashes};
use fleet_sim::Conversation;
use serde::Serialize;

use crate::agents::Sent;
use crate::world::{Noticed, Served, Tables};

/// The share of the ceiling that replicas with shared tables are held to.
pub(super) const GOAL: f64 = 0.95;
/// The share published for five replicas with tables of their own, AgentX with 256 sessions over 24 ranks.
pub(super) const PUBLISHED_PRIVATE: f64 = 0.58;

/// One run.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) tables: &'static str,
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) prompt_tokens: u64,
    pub(super) ceiling_tokens: u64,
    /// As the engines say.
    pub(super) cached_tokens: u64,
    pub(super) over_ceiling: f64,
    pub(super) ttft_ms_p50: f64,
    pub(super) ttft_ms_p99: f64,
    #[serde(flatten)]
    pub(super) noticed: Noticed,
}

impl Row {
    /// What was sent, and what the engines say they served, by worker.
    pub(super) fn new(
        tables: Tables,
        conversations: &[Conversation],
        block_size: BlockSize,
        sent: &[Sent],
        served: &[Vec<Served>],
        noticed: Noticed,
    ) -> Self {
        let all = || served.iter().flatten();
        let ceiling = ceiling(conversations, block_size, sent);
        let cached = all().map(|it| it.cached_tokens).sum();
        let mut ttft: Vec<Duration> = sent.iter().filter_map(|it| it.ttft).collect();
        ttft.sort_unstable();
        Self {
            tables: match tables {
                Tables::Shared => "shared",
                Tables::SharedUnannounced => "shared, unannounced",
                Tables::Private => "private",
            },
            requests: sent.len() as u64,
            errors: (sent.len() - ttft.len()) as u64,
            prompt_tokens: all().map(|it| it.prompt_tokens).sum(),
            ceiling_tokens: ceiling,
            cached_tokens: cached,
            over_ceiling: cached as f64 / ceiling.max(1) as f64,
            ttft_ms_p50: quantile(&ttft, 0.5),
            ttft_ms_p99: quantile(&ttft, 0.99),
            noticed,
        }
    }
}

/// Of sorted times, in milliseconds; 0 of none.
fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (share * last as f64).round() as usize;
    sorted.get(at).map_or(0.0, |it| it.as_secs_f64() * 1e3)
}

/// Tokens that so many conversations, live at once, take in one copy: each holds a prompt of the mean length.
pub(super) fn working_set(live: u32, conversations: &[Conversation]) -> u64 {
    let turns = || conversations.iter().flat_map(|it| &it.turns);
    let tokens: usize = turns().map(|it| it.prompt.len()).sum();
    u64::from(live) * tokens as u64 / turns().count().max(1) as u64
}

fn hashes(prompt: &[u32], block_size: BlockSize) -> Vec<SequenceHash> {
    sequence_hashes(&block_hashes(prompt, block_size, HashSeed::of(None, None)))
}

/// Tokens of full blocks that an earlier prompt carried, in the order of sending: what one cache without end would
/// have answered. At least one token of each prompt is computed.
fn ceiling(conversations: &[Conversation], block_size: BlockSize, sent: &[Sent]) -> u64 {
    let mut order: Vec<&Sent> = sent.iter().collect();
    order.sort_by_key(|it| it.at);
    let mut carried = HashSet::new();
    let mut tokens = 0;
    for it in order {
        let prompt = &conversations[it.conversation].turns[it.turn].prompt;
        let hashes = hashes(prompt, block_size);
        let size = u64::from(block_size.get());
        let most = (prompt.len() as u64).saturating_sub(1) / size;
        let held = hashes.iter().take_while(|it| carried.contains(*it)).count() as u64;
        tokens += held.min(most) * size;
        carried.extend(hashes);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use fleet_sim::Turn;
    use tokio::time::Instant;

    use super::*;

    fn conversation(prompts: &[std::ops::Range<u32>]) -> Conversation {
        let turn = |prompt: &std::ops::Range<u32>| Turn {
            prompt: prompt.clone().collect(),
            osl: 1,
            gap: Duration::ZERO,
        };
        Conversation {
            id: "c".to_owned(),
            start: Duration::ZERO,
            turns: prompts.iter().map(turn).collect(),
        }
    }

    fn sent(conversation: usize, turn: usize, after_ms: u64) -> Sent {
        Sent {
            conversation,
            turn,
            at: Instant::now() + Duration::from_millis(after_ms),
            ttft: Some(Duration::from_millis(after_ms)),
        }
    }

    #[test]
    fn the_ceiling_counts_full_blocks_that_were_sent_before_and_leaves_one_token_to_compute() {
        let conversations = [
            conversation(&[0..8, 0..10, 0..8]),
            conversation(&[0..6, 100..104]),
        ];
        let size = BlockSize::new(4).unwrap();
        let check = |sent: &[Sent], tokens| assert_eq!(ceiling(&conversations, size, sent), tokens);

        check(&[sent(0, 0, 0)], 0);
        check(&[sent(0, 0, 0), sent(0, 1, 1)], 8);
        check(&[sent(0, 0, 0), sent(0, 2, 1)], 4);
        check(&[sent(0, 1, 1), sent(0, 0, 0)], 8);
        check(&[sent(1, 0, 0), sent(0, 1, 1), sent(1, 1, 2)], 4);
    }

    #[test]
    fn the_working_set_is_a_mean_prompt_for_each_live_conversation() {
        let conversations = [
            conversation(&[0..8, 0..13]),
            conversation(std::slice::from_ref(&(0..6))),
        ];

        assert_eq!(working_set(2, &conversations), 2 * 9);
        assert_eq!(working_set(2, &[]), 0);
    }

    #[test]
    fn cached_tokens_are_those_that_the_engines_say() {
        let conversations = [conversation(&[0..8, 0..10])];
        let served = |prompt_tokens, cached_tokens| Served {
            request_id: None,
            dp_rank: 0,
            asked_dp_rank: None,
            prompt_tokens,
            cached_tokens,
        };
        let mut all = vec![sent(0, 0, 10), sent(0, 1, 20)];
        all[1].ttft = None;
        let size = BlockSize::new(4).unwrap();

        let engines = [vec![served(8, 0)], vec![served(10, 4)]];
        let row = Row::new(
            Tables::Shared,
            &conversations,
            size,
            &all,
            &engines,
            Noticed::default(),
        );

        assert_eq!((row.requests, row.errors, row.ceiling_tokens), (2, 1, 8));
        assert!((row.over_ceiling - 0.5).abs() < 1e-9);
    }
}
