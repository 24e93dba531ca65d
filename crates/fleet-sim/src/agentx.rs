//! A workload of coding agents, fitted to published figures of the AgentX traces.
//!
//! Source: the AgentX dataset of 2026-06-21 as published by SemiAnalysis (median 43 turns a session, 142k
//! input and 444 output tokens a request, growth of 632 tokens a turn with a 90th percentile of 3,735, gaps
//! of 2 s, 24 s and 11.4 min at p50, p90 and p99; 44 % of the sessions have sub-agents, median 4 of 7
//! requests; 2.8 % of turns begin the prompt anew). Sessions share no prefix; a sub-agent shares its
//! session's first prompt.

use std::time::Duration;

use crate::random::Random;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgentX {
    /// Sessions, all live from the start.
    pub sessions: u32,
    /// Divides all token counts.
    pub token_scale: f64,
    /// Divides all gaps.
    pub time_scale: f64,
    /// The longest prompt, in tokens, after scaling; a session ends before it grows beyond.
    pub max_isl: u32,
    /// The most turns of a session.
    pub max_turns: u32,
    /// The seed of every draw.
    pub seed: u64,
}

/// One conversation: its turns follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Its id, unique in the workload.
    pub id: String,
    /// When its first turn is sent, from the start of the run.
    pub start: Duration,
    /// Its turns, at least one.
    pub turns: Vec<Turn>,
}

/// One request of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The whole prompt, as token ids.
    pub prompt: Vec<u32>,
    /// Output tokens asked for.
    pub osl: u32,
    /// How long after the end of the turn before it is sent.
    pub gap: Duration,
}

/// Token ids are drawn below this: what every vocabulary has.
const VOCABULARY: u64 = 32_000;
/// The shortest first prompt, so that every session has something to cache.
const MIN_PROMPT: u32 = 64;

impl AgentX {
    /// Draws the workload. The same settings give the same workload.
    pub fn conversations(&self) -> Vec<Conversation> {
        let mut conversations = Vec::new();
        for number in 0..self.sessions {
            // A stream of its own for each session: more sessions leave the first ones as they are.
            let mut random =
                Random::new(self.seed ^ (u64::from(number) + 1).wrapping_mul(0x9e37_79b9));
            let start = self.gap(&mut random);
            let first = self.first_prompt(&mut random);
            let turns = self.turns(&first, 43.0, 354.0 / 43.0, self.max_turns, &mut random);
            if random.chance(0.44) {
                let children = (random.log_normal(2.0, 3.0).round() as u32).clamp(1, 4);
                for child in 0..children {
                    conversations.push(self.sub_agent(number, child, start, &first, &mut random));
                }
            }
            conversations.push(Conversation {
                id: format!("agent-{number}"),
                start,
                turns,
            });
        }
        conversations.sort_by_key(|it| it.start);
        conversations
    }

    fn sub_agent(
        &self,
        parent: u32,
        child: u32,
        parent_start: Duration,
        parent_prompt: &[u32],
        random: &mut Random,
    ) -> Conversation {
        let mut prompt = parent_prompt.to_vec();
        let task = self.tokens(random.log_normal(632.0, 6.0)).max(1);
        prompt.extend(self.draw_tokens(task, random));
        prompt.truncate(self.max_isl as usize);
        let turns = self.turns(&prompt, 7.0, 51.0 / 7.0, self.max_turns / 4, random);
        let later = self.gap(random) * 5 * (child + 1);
        Conversation {
            id: format!("agent-{parent}-sub-{child}"),
            start: parent_start + later,
            turns,
        }
    }

    fn turns(
        &self,
        first: &[u32],
        median: f64,
        p90_over_median: f64,
        most: u32,
        random: &mut Random,
    ) -> Vec<Turn> {
        let drawn = random.log_normal(median, p90_over_median).round() as u32;
        let count = drawn.clamp(1, most.max(1));
        let mut prompt = first.to_vec();
        let mut turns = Vec::new();
        for turn in 0..count {
            if turn > 0 {
                if random.chance(0.028) {
                    prompt = self.first_prompt(random);
                } else {
                    let growth = self.tokens(random.log_normal(632.0, 3735.0 / 632.0)).max(1);
                    prompt.extend(self.draw_tokens(growth, random));
                }
                if prompt.len() > self.max_isl as usize {
                    break;
                }
            }
            turns.push(Turn {
                prompt: prompt.clone(),
                osl: self.tokens(random.log_normal(444.0, 1705.0 / 444.0)).max(1),
                gap: self.gap(random),
            });
        }
        turns
    }

    /// With growth, the median request has 142k tokens.
    fn first_prompt(&self, random: &mut Random) -> Vec<u32> {
        let tokens = self.tokens(random.log_normal(105_000.0, 2.0));
        self.draw_tokens(tokens.clamp(MIN_PROMPT, self.max_isl), random)
    }

    fn draw_tokens(&self, count: u32, random: &mut Random) -> Vec<u32> {
        let token = |_| (random.next_u64() % VOCABULARY) as u32;
        (0..count).map(token).collect()
    }

    fn tokens(&self, unscaled: f64) -> u32 {
        // A float to integer cast saturates.
        (unscaled / self.token_scale).round() as u32
    }

    /// One gap in fifty is a pause of minutes, as the published 99th percentile asks for.
    fn gap(&self, random: &mut Random) -> Duration {
        let seconds = if random.chance(0.02) {
            random.log_normal(600.0, 1.5)
        } else {
            random.log_normal(2.0, 12.0)
        };
        Duration::from_secs_f64(seconds.min(3600.0) / self.time_scale)
    }
}

/// Tokens that one copy of every conversation's longest prompts takes: a cache of this size can hold
/// everything that will be asked for again. A prompt begun anew counts beside the one before it.
pub fn working_set(conversations: &[Conversation]) -> u64 {
    let of = |conversation: &Conversation| {
        let mut total = 0;
        let mut turns = conversation.turns.iter().peekable();
        while let Some(turn) = turns.next() {
            let grows = turns
                .peek()
                .is_some_and(|it| it.prompt.starts_with(&turn.prompt));
            if !grows {
                total += turn.prompt.len() as u64;
            }
        }
        total
    };
    conversations.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::{AgentX, Conversation, working_set};

    const SMALL: AgentX = AgentX {
        sessions: 200,
        token_scale: 16.0,
        time_scale: 100.0,
        max_isl: 16_384,
        max_turns: 60,
        seed: 1,
    };

    fn prompts(conversations: &[Conversation]) -> Vec<usize> {
        let turns = conversations.iter().flat_map(|it| &it.turns);
        let mut lengths: Vec<usize> = turns.map(|it| it.prompt.len()).collect();
        lengths.sort_unstable();
        lengths
    }

    #[test]
    fn prompts_have_the_published_median_and_stay_within_the_limit() {
        let lengths = prompts(&SMALL.conversations());

        let median = lengths[lengths.len() / 2] as f64 * 16.0;
        assert!((median / 142_000.0 - 1.0).abs() < 0.15, "{median}");
        assert!(lengths.last().is_some_and(|it| *it <= 16_384));
    }

    #[test]
    fn nearly_every_turn_extends_the_one_before() {
        let conversations = SMALL.conversations();
        let (mut extended, mut all) = (0_u32, 0_u32);
        for conversation in &conversations {
            for pair in conversation.turns.windows(2) {
                all += 1;
                extended += u32::from(pair[1].prompt.starts_with(&pair[0].prompt));
            }
        }

        let share = f64::from(extended) / f64::from(all);
        assert!((share - 0.972).abs() < 0.01, "{share}");
    }

    #[test]
    fn the_same_seed_gives_the_same_workload_and_more_sessions_keep_the_first() {
        assert_eq!(SMALL.conversations(), SMALL.conversations());
        let more = AgentX {
            sessions: 201,
            ..SMALL
        };
        let ids = |all: Vec<Conversation>| {
            let first = all.into_iter().filter(|it| it.id.starts_with("agent-7"));
            first.collect::<Vec<_>>()
        };
        assert_eq!(ids(more.conversations()), ids(SMALL.conversations()));
        let other = AgentX { seed: 2, ..SMALL };
        assert_ne!(other.conversations(), SMALL.conversations());
    }

    #[test]
    fn the_working_set_counts_each_prefix_once() {
        let conversations = SMALL.conversations();

        let all: u64 = prompts(&conversations).iter().map(|it| *it as u64).sum();

        let set = working_set(&conversations);
        assert!(0 < set && set < all / 5);
    }
}
