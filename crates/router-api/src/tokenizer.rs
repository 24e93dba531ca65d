//! Asking engines for the tokens of a request, each in its own words.

use std::sync::atomic::Ordering;

use axum::http::HeaderValue;
use bytes::Bytes;
use contracts::rpc::{CallHead, Down};
use domain::{ModelName, Worker, WorkerId};
use engine_wire::{Asked, ask_tokens};
use futures::StreamExt;

use crate::replica::Replica;

/// The longest answer of a tokenizer: a million tokens of up to seven digits.
const ANSWER_LIMIT: usize = 16 << 20;
/// llama.cpp is asked for the text of a chat first, and then for its tokens.
const MAX_QUESTIONS: usize = 2;

impl Replica {
    /// The engine's own tokens of a request, chat template and all. None when no engine gives them: the
    /// request is then placed without, which the decision says.
    pub(crate) async fn tokenize(
        &self,
        model: &ModelName,
        body: &[u8],
        authorization: Option<&HeaderValue>,
    ) -> Option<Vec<u32>> {
        let workers = self.mind.serving(model, self.clock.now());
        let next = self.tokenizer.fetch_add(1, Ordering::Relaxed) % workers.len().max(1);
        // An engine that gives no tokens is passed over for the next that does.
        let mut workers = workers.iter().cycle().skip(next).take(workers.len());
        let (worker, mut ask) = workers.find_map(|Worker { id, engine, .. }| {
            let ask = ask_tokens(*engine, body).ok()?;
            Some((id, ask))
        })?;
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        if let Some(key) = authorization.and_then(|it| it.to_str().ok()) {
            headers.push(("authorization".to_owned(), key.to_owned()));
        }
        for _ in 0..MAX_QUESTIONS {
            let body = Bytes::from(std::mem::take(&mut ask.body));
            let answer = self.ask_engine(worker, ask.path, &headers, body).await?;
            match ask.read(&answer).ok()? {
                Asked::Tokens(tokens) => return Some(tokens),
                Asked::Again(next) => ask = next,
            }
        }
        None
    }

    async fn ask_engine(
        &self,
        worker: &WorkerId,
        path: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Option<Vec<u8>> {
        let head = CallHead {
            worker: worker.clone(),
            dp_rank: None,
            conversation: None,
            method: "POST".to_owned(),
            path: path.to_owned(),
            headers: headers.to_vec(),
            usage_injected: false,
        };
        let (head, mut stream) = self.dispatch.call(head, body).await.ok()?;
        if head.status != 200 {
            return None;
        }
        let mut answer = Vec::new();
        while let Some(down) = stream.next().await {
            match down.ok()? {
                Down::Chunk(chunk) if answer.len() + chunk.len() <= ANSWER_LIMIT => {
                    answer.extend_from_slice(&chunk);
                }
                Down::Chunk(_) => return None,
                Down::End(_) => break,
            }
        }
        Some(answer)
    }
}
