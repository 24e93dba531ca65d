//! Asking engines for the tokens of a request, each in its own words.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::HeaderValue;
use bytes::Bytes;
use contracts::rpc::{CallHead, Down};
use domain::{ModelName, Worker, WorkerId};
use engine_wire::{Ask, Asked, ask_tokens};
use futures::{StreamExt, future, stream};
use tokio::time::timeout;

use crate::replica::Replica;

/// The longest answer of a tokenizer: a million tokens of up to seven digits.
const ANSWER_LIMIT: usize = 16 << 20;
/// llama.cpp is asked for the text of a chat first, and then for its tokens.
const MAX_QUESTIONS: usize = 2;
/// An engine that has not answered by then may never do: half of what there is time for.
const PATIENCE: Duration = Duration::from_secs(1);

impl Replica {
    /// The engine's own tokens of a request, chat template and all. None when no engine gives them: the
    /// request is then placed without, which the decision says. A second engine is asked when the first one
    /// gives none, or takes its time.
    pub(crate) async fn tokenize(
        &self,
        model: &ModelName,
        body: &[u8],
        authorization: Option<&HeaderValue>,
    ) -> Option<Vec<u32>> {
        let workers = self.mind.serving(model, self.clock.now());
        let next = self.tokenizer.fetch_add(1, Ordering::Relaxed) % workers.len().max(1);
        // An engine that gives no tokens is passed over for the next that does.
        let workers = workers.iter().cycle().skip(next).take(workers.len());
        let mut questions = workers.filter_map(|Worker { id, engine, .. }| {
            let ask = ask_tokens(*engine, body).ok()?;
            Some((id, ask))
        });
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        if let Some(key) = authorization.and_then(|it| it.to_str().ok()) {
            headers.push(("authorization".to_owned(), key.to_owned()));
        }
        let (worker, ask) = questions.next()?;
        let mut first = pin!(self.tokens_of(worker, ask, &headers));
        let early = timeout(PATIENCE, &mut first).await;
        if let Ok(Some(tokens)) = early {
            return Some(tokens);
        }
        let second = async {
            let (worker, ask) = questions.next()?;
            self.tokens_of(worker, ask, &headers).await
        };
        match early {
            Ok(_) => second.await,
            Err(_) => {
                let both = stream::select(stream::once(first), stream::once(second));
                pin!(both.filter_map(future::ready)).next().await
            }
        }
    }

    /// One engine's answer to what it is asked.
    async fn tokens_of(
        &self,
        worker: &WorkerId,
        mut ask: Ask,
        headers: &[(String, String)],
    ) -> Option<Vec<u32>> {
        for _ in 0..MAX_QUESTIONS {
            let body = Bytes::from(std::mem::take(&mut ask.body));
            let answer = self.ask_engine(worker, ask.path, headers, body).await?;
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
