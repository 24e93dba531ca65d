//! Sends requests to engines in vLLM's dialect and streams their answers.

use std::collections::VecDeque;
use std::error::Error;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::rpc::{CallEnd, CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead};
use domain::{Worker, WorkerId};
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
use crate::roster::Roster;

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
        let Some((url, worker)) = self.roster.find(&head.worker).await else {
            let worker = head.worker;
            return Err(DispatchError::UnknownWorker { worker });
        };
        let headers = self.headers_for(&worker, &head)?;
        let connect = |source: BoxError| DispatchError::Connect {
            worker: worker.id.clone(),
            url: url.to_string(),
            source,
        };
        let method = head.method.parse::<Method>();
        let method = method.map_err(|error| connect(error.into()))?;
        let response = self
            .client
            .send(&url, method, &head.path, headers, body)
            .await
            .map_err(connect)?;
        let (parts, body) = response.into_parts();
        let status = parts.status.as_u16();
        let passage = Passage::new(status, &parts.headers, head.usage_injected);
        let head = HttpHead {
            status,
            headers: end_to_end(&parts.headers),
        };
        let answer = Answer {
            worker: worker.id,
            body,
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

/// An answer whose body is still coming.
struct Answer {
    worker: WorkerId,
    body: Incoming,
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
                return Some(Ok(Down::Chunk(chunk)));
            }
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Over => return None,
                Stage::Ending(end) => return Some(Ok(Down::End(end))),
                Stage::Body => {}
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    // Trailers say nothing of the request and are left out.
                    if let Ok(chunk) = frame.into_data() {
                        self.passage.push(chunk, &mut self.out);
                    }
                    self.stage = Stage::Body;
                }
                Some(Err(error)) => return Some(Err(self.broken(error.into()))),
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

    fn broken(&self, source: Box<dyn Error + Send + Sync>) -> DispatchError {
        DispatchError::Broken {
            worker: self.worker.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests;
