//! A conversation that grows with each turn.

use serde_json::json;

use crate::http_client::{Answer, Client};

/// Tokens that each turn adds to the prompt: some full blocks and a piece of one.
const TURN_TOKENS: u32 = 100;
/// Turns after which it begins anew.
const MAX_TURNS: u32 = 20;

pub(crate) struct Conversation {
    id: String,
    first_token: u32,
    turns: u32,
    /// Where the client wants it.
    at: Option<String>,
    client: Client,
}

/// How one turn was served.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// `worker/rank`.
    pub(crate) target: String,
    pub(crate) overlap: u64,
    pub(crate) cached: u64,
}

impl Conversation {
    /// Conversations of different numbers share no tokens.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            id: format!("conversation-{number}"),
            first_token: 10_000 * number,
            turns: 0,
            at: None,
            client: Client::new(),
        }
    }

    /// The same at a rank of the client's choice, where clients may choose.
    pub(crate) fn at(self, rank: u32) -> Self {
        Self {
            at: Some(rank.to_string()),
            ..self
        }
    }

    /// Sends the next turn.
    pub(crate) async fn turn(&mut self, api: &str) -> Turn {
        self.turns = self.turns % MAX_TURNS + 1;
        let answer = self.send(api).await;
        let answer = answer.unwrap_or_else(|| panic!("{} got no answer", self.id));
        Turn::of(&answer)
    }

    /// Sends the next turn, whatever comes of it.
    pub(crate) async fn attempt(&mut self, api: &str) -> Option<Answer> {
        self.turns = self.turns % MAX_TURNS + 1;
        self.send(api).await
    }

    async fn send(&self, api: &str) -> Option<Answer> {
        let tokens = self.first_token..self.first_token + self.turns * TURN_TOKENS;
        let body = json!({
            "model": "fake-model",
            "prompt": tokens.collect::<Vec<u32>>(),
            "max_tokens": 4,
        });
        let mut headers = vec![("x-rankway-conversation", self.id.as_str())];
        headers.extend(self.at.as_deref().map(|rank| ("x-rankway-dp-rank", rank)));
        let url = format!("{api}/v1/completions");
        self.client.try_post(&url, &headers, &body).await
    }
}

impl Turn {
    fn of(answer: &Answer) -> Self {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let header = |name: &str| {
            let value = answer.header(name);
            value.unwrap_or_else(|| panic!("no {name} in {answer:?}"))
        };
        let usage = &answer.json()["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        Self {
            target: format!(
                "{}/{}",
                header("x-rankway-worker"),
                header("x-rankway-dp-rank")
            ),
            overlap: header("x-rankway-overlap-tokens").parse().unwrap(),
            cached: cached.unwrap(),
        }
    }
}
