//! Sends requests to engines, each in its own dialect, and streams their answers.
//!
//! A rank that an engine refuses is no mistake of whoever sent the request, who never saw it: the refusal is
//! [`DispatchError::Rank`], so that the request can go elsewhere.
//!
//! A call of which nothing has been passed on breaks off when its worker is declared gone: an engine that hangs
//! keeps its connections open, and only its watcher notices. It also breaks off after a long time, because an engine may
//! answer its watcher and have forgotten the request. An answer that has begun is left alone: no other
//! target can continue it, and an engine may be too busy to answer its watcher while its tokens flow.

use std::collections::VecDeque;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::rpc::{
    CallEnd, CallHead, CallStream, Dispatch, DispatchError, Down, HttpHead, RankEvidence,
};
use domain::DpRank;
use engine_wire::rank_refusal;
use futures::{StreamExt, stream};
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, sleep_until};

use crate::client::{BoxError, EngineClient};
use crate::headers::end_to_end;
use crate::metrics::Metrics;
use crate::passage::{Passage, Said};
use crate::request::outgoing;
use crate::roster::{Entry, Roster};

/// The longest refusal of a rank: engines say it in a sentence.
const REFUSAL_LIMIT: usize = 64 << 10;

/// The path to the engines from outside this service.
pub(crate) struct EngineDispatch {
    pub(crate) roster: Roster,
    pub(crate) client: EngineClient,
    pub(crate) metrics: Metrics,
}

#[async_trait]
impl Dispatch for EngineDispatch {
    async fn call(
        &self,
        head: CallHead,
        body: Bytes,
    ) -> Result<(HttpHead, CallStream), DispatchError> {
        let Some(entry) = self.roster.find(&head.worker).await else {
            let worker = head.worker;
            return Err(DispatchError::UnknownWorker { worker });
        };
        let outgoing = outgoing(&entry.worker, &head, body);
        let outgoing = outgoing.map_err(|refused| refuse(&entry, head.dp_rank, &refused))?;
        self.metrics.stripped_headers.inc_by(outgoing.stripped);
        let method = head.method.parse::<Method>();
        let method = method.map_err(|error| unreached(&entry, error))?;
        let (headers, body) = (outgoing.headers, outgoing.body);
        let deadline = Instant::now() + entry.first_byte;
        let sent = self
            .client
            .send(&entry.url, method, &head.path, headers, body);
        let response = tokio::select! {
            biased;
            response = sent => response.map_err(|error| unreached(&entry, error))?,
            () = entry.gone.cancelled() => return Err(unreached(&entry, Gone)),
            () = sleep_until(deadline) => return Err(unreached(&entry, Late::of(&entry))),
        };
        let (parts, body) = response.into_parts();
        let status = parts.status.as_u16();
        let passage = Passage::new(
            status,
            &parts.headers,
            head.usage_injected,
            outgoing.reported,
        );
        let mut answer = Answer {
            entry,
            body,
            begun: false,
            deadline,
            passage,
            out: VecDeque::new(),
            stage: Stage::Body,
            metrics: self.metrics.clone(),
        };
        if status == 400
            && let Some(asked) = outgoing.asked_rank
        {
            let refusal = answer.read_ahead(REFUSAL_LIMIT).await?;
            if let Some(words) = rank_refusal(&refusal, asked) {
                return Err(refuse(&answer.entry, head.dp_rank, &Refused { words }));
            }
        }
        let head = HttpHead {
            status,
            headers: end_to_end(&parts.headers),
        };
        Ok((head, answer.into_stream()))
    }
}

/// Why a worker does not serve the rank that it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("the engine refuses it: {words}")]
struct Refused {
    words: String,
}

fn refuse(entry: &Entry, dp_rank: Option<DpRank>, why: &dyn std::error::Error) -> DispatchError {
    DispatchError::Rank {
        worker: entry.worker.id.clone(),
        dp_rank: dp_rank.expect("no rank is refused that was not asked for"),
        why: why.to_string(),
    }
}

/// Why a call to a worker that took it has no answer.
#[derive(Debug, thiserror::Error)]
#[error("it stopped answering its health checks before a first byte came")]
struct Gone;

/// Why a call to a worker that answers its watcher has no answer.
#[derive(Debug, thiserror::Error)]
#[error("no first byte came within {seconds} s (`first_byte_seconds`)")]
struct Late {
    seconds: u64,
}

impl Late {
    const fn of(entry: &Entry) -> Self {
        let seconds = entry.first_byte.as_secs();
        Self { seconds }
    }
}

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
    /// When the first of it must be there.
    deadline: Instant,
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
                Stage::Body => {
                    if let Err(error) = self.advance().await {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    /// Takes one more piece of the body, or its end.
    async fn advance(&mut self) -> Result<(), DispatchError> {
        let frame = tokio::select! {
            biased;
            frame = self.body.frame() => frame,
            () = self.entry.gone.cancelled(), if !self.begun => {
                return Err(unreached(&self.entry, Gone));
            }
            () = sleep_until(self.deadline), if !self.begun => {
                return Err(unreached(&self.entry, Late::of(&self.entry)));
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
            Some(Err(error)) => return Err(self.broken(error)),
            None => {
                let said = self.passage.finish(&mut self.out);
                self.metrics.unread_usage.inc_by(self.passage.unread);
                self.stage = Stage::Ending(self.end(said));
            }
        }
        Ok(())
    }

    /// The body from its beginning, which stays to be taken: whole, or more than `limit` of it.
    async fn read_ahead(&mut self, limit: usize) -> Result<Vec<u8>, DispatchError> {
        while matches!(self.stage, Stage::Body)
            && self.out.iter().map(Bytes::len).sum::<usize>() <= limit
        {
            self.advance().await?;
        }
        Ok(self.out.iter().flatten().copied().collect())
    }

    /// What the answer said of itself. Engines that report a rank number theirs from 0 on, as their worker does.
    fn end(&self, said: Said) -> CallEnd {
        let observed_rank = said.making.and_then(|it| it.dp_rank());
        CallEnd {
            usage: said.usage,
            observed_rank: observed_rank.map(|rank| (rank, RankEvidence::Body)),
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
