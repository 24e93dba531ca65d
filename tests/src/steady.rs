//! Conversations that go on until they are told to end: as many at once as were asked for, each followed by a new one.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use serde::Serialize;
use service_kit::CancellationToken;
use tokio::task::JoinSet;

use crate::client::Failure;
use crate::world::MODEL;

/// What is said of failures: the first few, since one cause fails many.
const SAID: usize = 5;
/// Tokens that all prompts begin with.
const SHARED: u32 = 64;

/// What conversations there are.
#[derive(Clone, Debug)]
pub(crate) struct Steady {
    /// What their names begin with.
    pub(crate) name: String,
    /// How many at once.
    pub(crate) at_once: u32,
    /// Turns of each.
    pub(crate) turns: u32,
    /// Tokens that each turn adds to the prompt.
    pub(crate) grows: usize,
    /// Tokens of each answer.
    pub(crate) osl: u32,
    /// Between an answer and the next turn.
    pub(crate) pause: Duration,
    /// What the prompts are drawn from.
    pub(crate) seed: u64,
}

/// A turn to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) conversation: String,
    pub(crate) request_id: String,
    /// A streamed completion.
    pub(crate) body: Bytes,
}

/// What became of the turns.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    /// Those that failed before their first byte, or were refused.
    pub(crate) failed: u64,
    /// Those that broke off later.
    pub(crate) broken: u64,
    /// Of the first failures, why.
    pub(crate) said: Vec<String>,
}

#[derive(Serialize)]
struct Completion<'a> {
    model: &'a str,
    prompt: &'a [u32],
    max_tokens: u32,
    ignore_eos: bool,
    stream: bool,
}

impl Steady {
    /// Asks until `end`, and then until the last answer has come. What failed is not asked again; its conversation
    /// ends.
    pub(crate) async fn run<Asked>(
        &self,
        ask: impl Fn(Turn) -> Asked + Clone + Send + Sync + 'static,
        end: CancellationToken,
    ) -> anyhow::Result<Tally>
    where
        Asked: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let begun = Arc::new(AtomicU64::new(0));
        let mut running = JoinSet::new();
        for _ in 0..self.at_once {
            let (steady, ask) = (self.clone(), ask.clone());
            let (begun, end) = (begun.clone(), end.clone());
            running.spawn(async move {
                let mut tally = Tally::default();
                while !end.is_cancelled() {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    steady.converse(number, &ask, &end, &mut tally).await;
                }
                tally
            });
        }
        let mut all = Tally::default();
        while let Some(ended) = running.join_next().await {
            all.add(ended.context("join a conversation")?);
        }
        Ok(all)
    }

    async fn converse<Asked>(
        &self,
        number: u64,
        ask: &impl Fn(Turn) -> Asked,
        end: &CancellationToken,
        tally: &mut Tally,
    ) where
        Asked: Future<Output = Result<(), Failure>>,
    {
        let mut prompt = Vec::new();
        for turn in 0..self.turns {
            let asked = ask(self.turn(number, turn, &mut prompt));
            let asked = asked.await;
            tally.count(&asked);
            if asked.is_err() {
                return;
            }
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                () = tokio::time::sleep(self.pause) => {}
            }
        }
    }

    /// The first turn of a conversation.
    pub(crate) fn first_turn(&self, conversation: u64) -> Turn {
        self.turn(conversation, 0, &mut Vec::new())
    }

    /// The turn that extends `prompt`.
    fn turn(&self, conversation: u64, turn: u32, prompt: &mut Vec<u32>) -> Turn {
        if prompt.is_empty() {
            prompt.extend(0..SHARED);
        }
        let more = (0..self.grows).map(|at| self.token(conversation, turn, at));
        prompt.extend(more);
        let body = serde_json::to_vec(&Completion {
            model: MODEL,
            prompt,
            max_tokens: self.osl,
            ignore_eos: true,
            stream: true,
        });
        let conversation = format!("{}-{conversation}", self.name);
        Turn {
            request_id: format!("{conversation}.{turn}"),
            conversation,
            body: body.expect("numbers and texts have a JSON form").into(),
        }
    }

    /// Any token, always the same: multiplication by odd numbers spreads what differs.
    fn token(&self, conversation: u64, turn: u32, at: usize) -> u32 {
        let name = self
            .name
            .bytes()
            .fold(self.seed, |it, byte| it.wrapping_mul(31) ^ u64::from(byte));
        let mixed = name.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ conversation.wrapping_mul(0xbf58_476d_1ce4_e5b9)
            ^ u64::from(turn).wrapping_mul(0x94d0_49bb_1331_11eb)
            ^ (at as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // Half of it is below every vocabulary's size.
        (mixed >> 48) as u32 % 32_000
    }
}

impl Tally {
    fn count(&mut self, asked: &Result<(), Failure>) {
        self.requests += 1;
        let Err(failure) = asked else {
            return;
        };
        match failure {
            Failure::Unbegun(_) | Failure::Refused(..) => self.failed += 1,
            Failure::Broken(_) => self.broken += 1,
        }
        self.say(&chain(failure));
    }

    /// The two together.
    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.broken += other.broken;
        other.said.iter().for_each(|it| self.say(it));
    }

    fn say(&mut self, why: &str) {
        if self.said.len() < SAID {
            self.said.push(why.to_owned());
        }
    }

    /// Logs what failed first, for whoever looks into it.
    pub(crate) fn log(&self) {
        for why in &self.said {
            tracing::error!(why, "a request failed");
        }
    }
}

/// An error with what it follows from.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_extend_their_conversations_until_the_end_and_what_fails_is_counted() {
        let steady = Steady {
            name: "steady".to_owned(),
            at_once: 1,
            turns: 3,
            grows: 4,
            osl: 1,
            pause: Duration::ZERO,
            seed: 1,
        };
        let end = CancellationToken::new();
        let (sender, asked) = std::sync::mpsc::channel();
        let ends = end.clone();
        let ask = move |turn: Turn| {
            sender.send(turn.clone()).unwrap();
            if turn.request_id == "steady-1.2" {
                ends.cancel();
            }
            let failed = turn.request_id == "steady-1.2";
            std::future::ready(match failed {
                true => Err(Failure::Broken(anyhow::anyhow!("gone").context("read"))),
                false => Ok(()),
            })
        };

        let tally = steady.run(ask, end).await.unwrap();

        assert_eq!((tally.requests, tally.failed, tally.broken), (6, 0, 1));
        assert_eq!(tally.said, ["after the first byte: read: gone"]);
        let prompts: Vec<Vec<u64>> = asked
            .iter()
            .map(|turn| {
                let body: serde_json::Value = serde_json::from_slice(&turn.body).unwrap();
                let prompt = body["prompt"].as_array().unwrap();
                prompt.iter().map(|it| it.as_u64().unwrap()).collect()
            })
            .collect();
        assert_eq!(prompts.len(), 6);
        assert!(prompts[1].starts_with(&prompts[0]));
        assert_eq!(prompts[1].len(), prompts[0].len() + 4);
        assert!(!prompts[3].starts_with(&prompts[0]));
        assert!(prompts[3].starts_with(&prompts[0][..SHARED as usize]));
    }
}
