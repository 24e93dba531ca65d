//! Conversations that go on for a while, half of their turns streamed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fleet_sim::Random;
use futures::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Options;
use super::timeline::Event;
use crate::client::{Ask, Client, Failure};
use crate::world::MODEL;

/// Over how long conversations begin.
const BEGINNING: Duration = Duration::from_secs(3);
/// Between an answer and the next turn, in seconds.
const PAUSE: (f64, f64) = (2.0, 4.0);
/// Tokens of a first prompt, and those that each turn adds.
const PROMPT: usize = 256;
const MORE: usize = 64;
/// Tokens of an answer.
const ANSWER: u32 = 24;
/// Words that prompts are made of.
const VOCABULARY: u64 = 32_000;
/// Turns that are sent at once when all is over.
const MORE_AT_ONCE: usize = 8;

/// What the conversations are, and who carries their turns.
pub(super) struct Traffic {
    client: Client,
    conversations: u32,
    seed: u64,
}

/// What came of the turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turns {
    pub(super) requests: u64,
    /// Of those, streams that had begun and broke off.
    pub(super) broken: u64,
    /// Of those, requests that failed before their first byte.
    pub(super) failed: u64,
    /// How often a router was not reached, or broke off before the first byte, and another one was asked.
    pub(super) retried_elsewhere: u64,
}

impl Traffic {
    pub(super) fn new(routers: Vec<SocketAddr>, options: &Options) -> Self {
        Self {
            client: Client::of(routers),
            conversations: options.conversations,
            seed: options.seed,
        }
    }

    /// All conversations, by their numbers.
    pub(super) const fn all(&self) -> std::ops::Range<u32> {
        0..self.conversations
    }

    /// One more turn of some conversations, a few at a time, each as long as the second one.
    pub(super) async fn more(&self, conversations: &[u32], name: &str) -> Turns {
        let before = self.client.retried_elsewhere();
        let turns = conversations.iter().map(|it| self.turn(*it, 1, name));
        let mut turns = stream::iter(turns).buffer_unordered(MORE_AT_ONCE);
        let mut all = Turns::default();
        while let Some(failure) = turns.next().await {
            all.count(failure.as_ref());
        }
        all.retried_elsewhere = self.client.retried_elsewhere() - before;
        all
    }

    /// A turn of a conversation, under a name; why it failed, if it did.
    async fn turn(&self, number: u32, turn: usize, name: &str) -> Option<Failure> {
        let id = conversation(number);
        let request_id = format!("{id}.{name}");
        let mut random = Random::new(self.seed << 32 | u64::from(number));
        let length = PROMPT + MORE * turn;
        let prompt: Vec<u64> = (0..length)
            .map(|_| random.next_u64() % VOCABULARY)
            .collect();
        let streamed = (number as usize + turn).is_multiple_of(2);
        let body = json!({
            "model": MODEL, "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": true, "stream": streamed,
        });
        let answer = self.client.ask(Ask {
            path: "/v1/completions",
            conversation: Some(&id),
            request_id: &request_id,
            body: body.to_string().into(),
        });
        let failure = answer.await.err();
        if let Some(failure) = &failure {
            tracing::error!(%failure, request_id, "a request failed");
        }
        failure
    }
}

impl Turns {
    /// These and others.
    pub(super) const fn and(self, others: Self) -> Self {
        Self {
            requests: self.requests + others.requests,
            broken: self.broken + others.broken,
            failed: self.failed + others.failed,
            retried_elsewhere: self.retried_elsewhere + others.retried_elsewhere,
        }
    }

    fn count(&mut self, failure: Option<&Failure>) {
        self.requests += 1;
        match failure {
            None => {}
            Some(Failure::Broken(_)) => self.broken += 1,
            Some(Failure::Unbegun(_) | Failure::Refused(..)) => self.failed += 1,
        }
    }
}

/// The name of a conversation.
pub(super) fn conversation(number: u32) -> String {
    format!("talk-{number}")
}

/// Lets all conversations go on until the time is over, and every turn to its end.
pub(super) async fn run(
    traffic: &Arc<Traffic>,
    options: &Options,
    began: Instant,
    events: mpsc::UnboundedSender<(Instant, Event)>,
) -> Turns {
    let until = began + options.duration();
    let mut talking = JoinSet::new();
    for number in 0..traffic.conversations {
        talking.spawn(converse(traffic.clone(), number, until, events.clone()));
    }
    let mut all = Turns::default();
    while let Some(turns) = talking.join_next().await {
        all = all.and(turns.expect("a conversation does not panic"));
    }
    all.retried_elsewhere = traffic.client.retried_elsewhere();
    all
}

async fn converse(
    traffic: Arc<Traffic>,
    number: u32,
    until: Instant,
    events: mpsc::UnboundedSender<(Instant, Event)>,
) -> Turns {
    let mut random = Random::new(traffic.seed << 32 | u64::from(number) | 1 << 31);
    let mut turns = Turns::default();
    sleep(BEGINNING.mul_f64(random.unit())).await;
    for turn in 0.. {
        if until < Instant::now() {
            break;
        }
        let failure = traffic.turn(number, turn, &turn.to_string()).await;
        turns.count(failure.as_ref());
        let event = match failure {
            None => Event::Answered,
            Some(Failure::Broken(_)) => Event::BrokenOff,
            Some(why) => Event::Failed(why.to_string()),
        };
        // The observer outlives all conversations.
        let _ = events.send((Instant::now(), event));
        let (least, most) = PAUSE;
        sleep(Duration::from_secs_f64(
            least + (most - least) * random.unit(),
        ))
        .await;
    }
    turns
}
