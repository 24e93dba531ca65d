//! Sends conversations of a few turns, each prompt with all that came before.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fleet_sim::Random;
use rankway::progress::{Progress, ProgressLine};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Options;
use crate::client::{Ask, Client};
use crate::world::{MODEL, World};

/// Tokens of a first prompt, and how many each turn adds.
const FIRST: usize = 160;
const GROWTH: usize = 64;
/// Tokens of each answer: with them a turn has a block that no other has.
const OSL: u32 = 20;
/// Conversations that go on at one time.
const CONCURRENT: usize = 32;

/// A conversation that was sent.
pub(super) struct Sent {
    pub(super) conversation: String,
    /// When the first token of its first turn came.
    pub(super) first_token: Option<Instant>,
    /// Its turns that were answered, and whether one was not: no more were sent then.
    pub(super) answered: u64,
    pub(super) failed: bool,
}

/// Runs all to their end, or their first error; `pause` lies between an answer and the next turn.
pub(super) async fn run(
    world: &World,
    what: &str,
    options: &Options,
    pause: Duration,
) -> anyhow::Result<Vec<Sent>> {
    let client = Arc::new(Client::of(world.routers()));
    let lanes = Arc::new(Semaphore::new(CONCURRENT));
    let mut line = ProgressLine::since(Instant::now());
    let mut running = JoinSet::new();
    let total = usize::try_from(options.conversations)?;
    for number in 0..options.conversations {
        let lane = lanes.clone().acquire_owned().await?;
        let random = Random::new(options.seed << 32 | u64::from(number));
        let (client, turns) = (client.clone(), options.turns);
        running.spawn(async move {
            let sent = converse(&client, number, turns, pause, random).await;
            drop(lane);
            sent
        });
        let done = usize::try_from(number)?;
        line.show(&Progress {
            what,
            done,
            total,
            share: done as f64 / total as f64,
            details: "",
        });
    }
    let mut sent = Vec::new();
    while let Some(ended) = running.join_next().await {
        sent.push(ended.context("join a conversation")?);
    }
    Ok(sent)
}

async fn converse(
    client: &Client,
    number: u32,
    turns: u32,
    pause: Duration,
    mut random: Random,
) -> Sent {
    let mut sent = Sent {
        conversation: format!("owned-{number}"),
        first_token: None,
        answered: 0,
        failed: false,
    };
    let mut prompt: Vec<u64> = Vec::new();
    for turn in 0..turns {
        if turn > 0 {
            tokio::time::sleep(pause).await;
        }
        let added = if turn == 0 { FIRST } else { GROWTH };
        prompt.extend((0..added).map(|_| random.next_u64() % 32_000));
        let body = json!({
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": OSL,
            "ignore_eos": true,
            "stream": true,
        });
        let began = Instant::now();
        let request_id = format!("{}.{turn}", sent.conversation);
        let ask = Ask {
            path: "/v1/completions",
            conversation: Some(&sent.conversation),
            request_id: &request_id,
            body: body.to_string().into(),
        };
        match client.ask(ask).await {
            Ok(answer) => {
                sent.answered += 1;
                sent.first_token.get_or_insert(began + answer.ttft);
            }
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "a request failed");
                sent.failed = true;
                break;
            }
        }
    }
    sent
}
