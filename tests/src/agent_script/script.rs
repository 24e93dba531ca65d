//! The script: 64 conversations of 4 turns, 16 of them at a time, each turn with all that came before.

use std::sync::Arc;

use anyhow::Context as _;
use fleet_sim::Random;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client::{Ask, Client};
use crate::world::{MODEL, World};

/// Conversations, and turns of each.
const CONVERSATIONS: u32 = 64;
const TURNS: u32 = 4;
/// Turns that have one before them.
pub(super) const LATER_TURNS: u32 = CONVERSATIONS * (TURNS - 1);
/// Conversations that go on at one time.
const CONCURRENT: usize = 16;
/// Characters of the system prompt that all share.
const SYSTEM_CHARACTERS: usize = 580;
/// Words of a user's message, at least, and how many there may be more.
const LEAST_WORDS: u64 = 40;
const MORE_WORDS: u64 = 41;
/// Tokens of each answer.
const OSL: u32 = 32;

/// Runs the script, drawn from `seed`; how many requests failed.
pub(super) async fn run(world: &World, seed: u64) -> anyhow::Result<u32> {
    let client = Arc::new(Client::of(world.routers()));
    let lanes = Arc::new(Semaphore::new(CONCURRENT));
    let system = system_prompt(&mut Random::new(0));
    let mut running = JoinSet::new();
    for number in 0..CONVERSATIONS {
        let mut random = Random::new(seed << 32 | u64::from(number));
        let messages = (0..TURNS).map(|_| words(&mut random)).collect();
        let lane = lanes.clone().acquire_owned().await?;
        let (client, system) = (client.clone(), system.clone());
        running.spawn(async move {
            let ended = converse(&client, number, &system, messages).await;
            drop(lane);
            ended
        });
    }
    let mut errors = 0;
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended.context("join a conversation")? {
            tracing::error!(error = format!("{error:#}"), "a request failed");
            errors += 1;
        }
    }
    Ok(errors)
}

/// One conversation to its end, or its first error.
async fn converse(
    client: &Client,
    number: u32,
    system: &str,
    messages: Vec<String>,
) -> anyhow::Result<()> {
    let id = format!("conversation-{number}");
    let mut chat = vec![json!({"role": "system", "content": system})];
    for (turn, message) in messages.into_iter().enumerate() {
        chat.push(json!({"role": "user", "content": message}));
        let body = json!({
            "model": MODEL,
            "messages": chat,
            "max_tokens": OSL,
            "ignore_eos": true,
        });
        let ask = Ask {
            path: "/v1/chat/completions",
            conversation: Some(&id),
            request_id: &request_id(number, turn),
            body: body.to_string().into(),
        };
        let answer = client.ask(ask).await?;
        chat.push(json!({"role": "assistant", "content": answer.text}));
    }
    Ok(())
}

/// The name of a turn, from 0, of a conversation.
fn request_id(conversation: u32, turn: usize) -> String {
    format!("{conversation}.{turn}")
}

/// Conversation and turn by the name.
pub(super) fn parse_request_id(id: &str) -> Option<(u32, u32)> {
    let (conversation, turn) = id.split_once('.')?;
    Some((conversation.parse().ok()?, turn.parse().ok()?))
}

fn system_prompt(random: &mut Random) -> String {
    let mut text = String::new();
    while text.len() < SYSTEM_CHARACTERS {
        text += &words(random);
        text.push(' ');
    }
    text.truncate(SYSTEM_CHARACTERS);
    text
}

/// A message of drawn words.
fn words(random: &mut Random) -> String {
    let count = LEAST_WORDS + random.next_u64() % MORE_WORDS;
    let words: Vec<String> = (0..count).map(|_| word(random)).collect();
    words.join(" ")
}

/// Three to nine letters.
fn word(random: &mut Random) -> String {
    let letters = 3 + random.next_u64() % 7;
    let letter = |_| char::from(b'a' + (random.next_u64() % 26) as u8);
    (0..letters).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_prompt_has_its_length_and_names_come_back() {
        assert_eq!(system_prompt(&mut Random::new(0)).chars().count(), 580);
        assert_eq!(parse_request_id(&request_id(63, 3)), Some((63, 3)));
        assert_eq!(parse_request_id("another"), None);
    }
}
