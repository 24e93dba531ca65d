//! Sends the conversations of agents, each at its own pace and every request to the next router.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fleet_sim::Conversation;
use rankway::progress::{Progress, ProgressLine};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{Ask, Client};
use crate::world::{MODEL, World};

/// By what conversations are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    ById,
    /// By their prompts: no id is sent.
    ByLineage,
}

/// A turn that was sent.
pub(crate) struct Sent {
    pub(crate) conversation: usize,
    pub(crate) turn: usize,
    pub(crate) at: Instant,
    /// From sending to the first byte; none where it failed.
    pub(crate) ttft: Option<Duration>,
}

#[derive(Serialize)]
struct Completion<'a> {
    model: &'a str,
    prompt: &'a [u32],
    max_tokens: u32,
    ignore_eos: bool,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// Runs all conversations to their end, or their first error. `what` names the run to whoever waits.
pub(crate) async fn run(
    world: &World,
    what: &str,
    known: Known,
    conversations: &Arc<[Conversation]>,
) -> anyhow::Result<Vec<Sent>> {
    let client = Arc::new(Client::of(world.routers()));
    // Bounded by the turns of the workload.
    let (sender, mut ended) = mpsc::unbounded_channel();
    let mut running = JoinSet::new();
    for number in 0..conversations.len() {
        let (client, all) = (client.clone(), conversations.clone());
        running.spawn(converse(client, all, number, known, sender.clone()));
    }
    drop(sender);
    let total = conversations.iter().map(|it| it.turns.len()).sum();
    let mut line = ProgressLine::since(Instant::now());
    let mut sent = Vec::new();
    while let Some(turn) = ended.recv().await {
        sent.push(turn);
        line.show(&Progress {
            what,
            done: sent.len(),
            total,
            share: sent.len() as f64 / f64::from(u32::try_from(total)?),
            details: "",
        });
    }
    while let Some(joined) = running.join_next().await {
        joined.context("join a conversation")?;
    }
    Ok(sent)
}

async fn converse(
    client: Arc<Client>,
    conversations: Arc<[Conversation]>,
    conversation: usize,
    known: Known,
    sent: mpsc::UnboundedSender<Sent>,
) {
    let Conversation { id, start, turns } = &conversations[conversation];
    tokio::time::sleep(*start).await;
    for (turn, it) in turns.iter().enumerate() {
        if turn > 0 {
            tokio::time::sleep(it.gap).await;
        }
        let body = serde_json::to_vec(&Completion {
            model: MODEL,
            prompt: &it.prompt,
            max_tokens: it.osl,
            ignore_eos: true,
            stream: true,
            stream_options: StreamOptions {
                include_usage: true,
            },
        });
        let request_id = format!("{id}.{turn}");
        let at = Instant::now();
        let answer = client.ask(Ask {
            path: "/v1/completions",
            conversation: (known == Known::ById).then_some(id),
            request_id: &request_id,
            body: body.expect("numbers and texts have a JSON form").into(),
        });
        let ttft = match answer.await {
            Ok(answer) => Some(answer.ttft),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "a request failed");
                None
            }
        };
        // The receiver outlives every conversation, but for an interrupt.
        let _ = sent.send(Sent {
            conversation,
            turn,
            at,
            ttft,
        });
        if ttft.is_none() {
            return;
        }
    }
}
