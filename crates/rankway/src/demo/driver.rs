//! The demo's client: conversations in real time, each turn at the next router.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use fleet_sim::{Conversation, Turn};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How one turn went.
#[derive(Debug)]
pub(super) struct TurnResult {
    /// The turn's place in its conversation, from 0.
    pub(super) turn: usize,
    /// Tokens of its prompt.
    pub(super) tokens: usize,
    /// From sending to the first byte of the answer's body.
    pub(super) outcome: anyhow::Result<Duration>,
    /// The rank it was sent to, as the router says; none where the engine chose.
    pub(super) target: Option<String>,
    /// The rank of the turn before.
    pub(super) target_before: Option<String>,
}

/// Sends conversations to routers.
pub(super) struct Driver {
    client: Client<HttpConnector, Full<Bytes>>,
    routers: Vec<SocketAddr>,
    model: String,
}

#[derive(Serialize)]
struct Completion<'a> {
    model: &'a str,
    prompt: &'a [u32],
    max_tokens: u32,
    ignore_eos: bool,
    stream: bool,
}

impl Driver {
    pub(super) fn new(routers: Vec<SocketAddr>, model: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            routers,
            model: model.to_owned(),
        }
    }

    /// Runs one conversation to its end, or to its first error.
    pub(super) async fn converse(
        self: Arc<Self>,
        number: usize,
        conversation: Conversation,
        results: mpsc::UnboundedSender<TurnResult>,
    ) {
        tokio::time::sleep(conversation.start).await;
        let mut target_before = None;
        for (turn, it) in conversation.turns.iter().enumerate() {
            if turn > 0 {
                tokio::time::sleep(it.gap).await;
            }
            let router = self.routers[(number + turn) % self.routers.len()];
            let answered = self.ask(router, &conversation.id, it).await;
            let (outcome, target) = match answered {
                Ok((ttft, target)) => (Ok(ttft), target),
                Err(error) => (Err(error), None),
            };
            let failed = outcome.is_err();
            // The receiver outlives every conversation, but for an interrupt.
            let _ = results.send(TurnResult {
                turn,
                tokens: it.prompt.len(),
                outcome,
                target: target.clone(),
                target_before: target_before.take(),
            });
            if failed {
                return;
            }
            target_before = target;
        }
    }

    async fn ask(
        &self,
        router: SocketAddr,
        conversation: &str,
        turn: &Turn,
    ) -> anyhow::Result<(Duration, Option<String>)> {
        let body = serde_json::to_vec(&Completion {
            model: &self.model,
            prompt: &turn.prompt,
            max_tokens: turn.osl,
            ignore_eos: true,
            stream: true,
        })?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{router}/v1/completions"))
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-rankway-conversation", conversation)
            .body(Full::from(body))?;
        let sent = Instant::now();
        let response = self.client.request(request).await.context("send a turn")?;
        let (head, mut body) = response.into_parts();
        let mut ttft = None;
        let mut answer = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.context("read the answer of a turn")?;
            if let Some(data) = frame.data_ref() {
                ttft.get_or_insert_with(|| sent.elapsed());
                answer.extend_from_slice(data);
            }
        }
        let text = String::from_utf8_lossy(&answer);
        if head.status != StatusCode::OK {
            bail!("a turn was answered {}: {}", head.status, text.trim());
        }
        if !text.trim_end().ends_with("data: [DONE]") {
            bail!("the answer of a turn broke off");
        }
        let ttft = ttft.context("the answer of a turn is empty")?;
        let text_of = |name| head.headers.get(name).and_then(|it| it.to_str().ok());
        let worker = text_of("x-rankway-worker");
        let rank = text_of("x-rankway-dp-rank");
        let target = worker
            .zip(rank)
            .map(|(worker, rank)| format!("{worker}/{rank}"));
        Ok((ttft, target))
    }
}

/// What the turns of a pass showed.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Time to first token of each turn served, in the order they ended.
    pub(super) ttft: Vec<Duration>,
    pub(super) errors: u64,
    /// The first few different errors.
    pub(super) examples: BTreeSet<String>,
    /// Turns, after a conversation's first, that named a rank as the turn before did.
    pub(super) later_turns: u64,
    /// Those of them at the same rank.
    pub(super) kept: u64,
}

/// Different errors kept: enough to see what is wrong.
const MAX_EXAMPLES: usize = 3;

impl Tally {
    pub(super) fn add(&mut self, result: TurnResult) {
        match result.outcome {
            Ok(ttft) => self.ttft.push(ttft),
            Err(error) => {
                self.errors += 1;
                if self.examples.len() < MAX_EXAMPLES {
                    self.examples.insert(format!("{error:#}"));
                }
            }
        }
        if let (true, Some(before), Some(now)) =
            (result.turn > 0, result.target_before, result.target)
        {
            self.later_turns += 1;
            self.kept += u64::from(before == now);
        }
    }
}
