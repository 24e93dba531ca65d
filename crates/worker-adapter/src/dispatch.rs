//! Sends requests to engines in vLLM's dialect and streams their answers.
//!
//! A call of which nothing has been passed on breaks off when its worker is declared gone: an engine that hangs
//! keeps its connections open, and only its watcher notices. An answer that has begun is left alone: no other
//! target can continue it, and an engine may be too busy to answer its watcher while its tokens flow.

use std::collections::VecDeque;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::rpc::{CallEnd, CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead};
use domain::Worker;
use engine_wire::{CLIENT_RANK_HEADERS, vllm};
use futures::{StreamExt, stream};
use http::Method;
use http::header::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::client::{BoxError, EngineClient};
use crate::headers::{end_to_end, rank_value, to_engine};
use crate::metrics::Metrics;
use crate::passage::Passage;
use crate::roster::{Entry, Roster};

/// The path to the engines from outside this service.
pub(crate) struct VllmDispatch {
    pub(crate) roster: Roster,
    pub(crate) client: EngineClient,
    pub(crate) metrics: Metrics,
}

#[async_trait]
impl Dispatch for VllmDispatch {
    async fn call(
        &self,
        head: CallHead,
        body: Bytes,
    ) -> Result<(HttpHead, CallStream), DispatchError> {
        let Some(entry) = self.roster.find(&head.worker).await else {
            let worker = head.worker;
            return Err(DispatchError::UnknownWorker { worker });
        };
        let headers = self.headers_for(&entry.worker, &head)?;
        let method = head.method.parse::<Method>();
        let method = method.map_err(|error| unreached(&entry, error))?;
        let sent = self
            .client
            .send(&entry.url, method, &head.path, headers, body);
        let response = tokio::select! {
            biased;
            response = sent => response.map_err(|error| unreached(&entry, error))?,
            () = entry.gone.cancelled() => return Err(unreached(&entry, Gone)),
        };
        let (parts, body) = response.into_parts();
        let status = parts.status.as_u16();
        let passage = Passage::new(status, &parts.headers, head.usage_injected);
        let head = HttpHead {
            status,
            headers: end_to_end(&parts.headers),
        };
        let answer = Answer {
            entry,
            body,
            begun: false,
            passage,
            out: VecDeque::new(),
            stage: Stage::Body,
            metrics: self.metrics.clone(),
        };
        Ok((head, answer.into_stream()))
    }
}

impl VllmDispatch {
    fn headers_for(&self, worker: &Worker, head: &CallHead) -> Result<HeaderMap, DispatchError> {
        let (mut headers, stripped) = to_engine(&head.headers, &CLIENT_RANK_HEADERS);
        self.metrics.stripped_headers.inc_by(stripped);
        if let Some(rank) = head.dp_rank {
            let value = rank_value(worker, rank).map_err(|refused| DispatchError::Rank {
                worker: worker.id.clone(),
                dp_rank: rank,
                why: refused.to_string(),
            })?;
            if let Some(value) = value {
                headers.insert(vllm::RANK_HEADER, HeaderValue::from(value));
            }
        }
        Ok(headers)
    }
}

/// Why a call to a worker that took it has no answer.
#[derive(Debug, thiserror::Error)]
#[error("it stopped answering its health checks before a first byte came")]
struct Gone;

fn unreached(entry: &Entry, source: impl Into<BoxError>) -> DispatchError {
    DispatchError::Connect {
        worker: entry.worker.id.clone(),
        url: entry.url.to_string(),
        source: source.into(),
    }
}

/// An answer whose body is still coming.
struct Answer {
    entry: Entry,
    body: Incoming,
    /// Whether any of it has been taken.
    begun: bool,
    passage: Passage,
    /// What may pass and has not been taken.
    out: VecDeque<Bytes>,
    stage: Stage,
    metrics: Metrics,
}

enum Stage {
    Body,
    /// The engine has sent all; what it cost is told last.
    Ending(CallEnd),
    Over,
}

impl Answer {
    fn into_stream(self) -> CallStream {
        stream::unfold(self, |mut answer| async move {
            let item = answer.next().await?;
            Some((item, answer))
        })
        .boxed()
    }

    async fn next(&mut self) -> Option<Result<Down, DispatchError>> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                self.begun = true;
                return Some(Ok(Down::Chunk(chunk)));
            }
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Over => return None,
                Stage::Ending(end) => return Some(Ok(Down::End(end))),
                Stage::Body => {}
            }
            let frame = tokio::select! {
                biased;
                frame = self.body.frame() => frame,
                () = self.entry.gone.cancelled(), if !self.begun => {
                    return Some(Err(unreached(&self.entry, Gone)));
                }
            };
            match frame {
                Some(Ok(frame)) => {
                    // Trailers say nothing of the request and are left out.
                    if let Ok(chunk) = frame.into_data() {
                        self.passage.push(chunk, &mut self.out);
                    }
                    self.stage = Stage::Body;
                }
                Some(Err(error)) => return Some(Err(self.broken(error))),
                None => {
                    let usage = self.passage.finish(&mut self.out);
                    self.metrics.unread_usage.inc_by(self.passage.unread);
                    // vLLM's answers do not say which rank ran.
                    let observed_rank = None;
                    self.stage = Stage::Ending(CallEnd {
                        usage,
                        observed_rank,
                    });
                }
            }
        }
    }

    fn broken(&self, error: hyper::Error) -> DispatchError {
        DispatchError::Broken {
            worker: self.entry.worker.id.clone(),
            source: error.into(),
        }
    }
}

#[cfg(test)]
mod tests;
