//! Answers, whole or streamed; how each API writes them is in a room of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use domain::{BlockSize, DpRank, Endpoint, Tokens};
use futures::stream;
use serde::Serialize;
use tokio::sync::watch;

use super::body::GenerateBody;
use super::error::ApiError;
use super::{Surface, messages, openai, responses};
use crate::dialect::Dialect;
use crate::driver::{Accepted, Progress, Stopped};
use crate::tokenizer::{self, END};

/// An answer that is known and told as its tokens are generated.
pub(super) struct Answer {
    pub(super) endpoint: Endpoint,
    pub(super) dialect: Dialect,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    /// The prompt and the answer.
    tokens: Arc<[u32]>,
    pub(super) isl: usize,
    pub(super) block_size: BlockSize,
    /// Where it runs.
    pub(super) rank: DpRank,
    pub(super) usage_in_stream: bool,
    token_ids: bool,
    /// Whether the client asked on which rank it ran, and more.
    pub(super) meta_info: bool,
    progress: watch::Receiver<Progress>,
}

impl Answer {
    /// The answer to `body`, whose prompt is the first `isl` of `tokens`. It is named after `request_id`.
    pub(super) fn new(
        surface: &Surface,
        endpoint: Endpoint,
        body: &GenerateBody<'_>,
        (tokens, isl): (Arc<[u32]>, usize),
        accepted: Accepted,
        request_id: Option<&str>,
    ) -> Self {
        let options = body.stream_options.as_ref();
        let created = surface.clock.now().as_secs_f64() as u64;
        let number = surface.next_answer.fetch_add(1, Ordering::Relaxed);
        let own_name = || format!("{created:x}{number:08x}");
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completions | Endpoint::Embeddings => "cmpl-",
            Endpoint::Responses => "resp_",
            Endpoint::Messages => "msg_",
        };
        let name = request_id.map_or_else(own_name, str::to_owned);
        let model = body.model.as_deref().unwrap_or(surface.model.as_str());
        Self {
            endpoint,
            dialect: surface.dialect,
            id: format!("{prefix}{name}"),
            created,
            model: model.to_owned(),
            tokens,
            isl,
            block_size: surface.engine.block_size,
            rank: accepted.rank,
            usage_in_stream: options.and_then(|it| it.include_usage) == Some(true),
            token_ids: body.return_token_ids == Some(true),
            meta_info: body.return_meta_info == Some(true),
            progress: accepted.progress,
        }
    }

    /// Waits for all of it. Dropping the future aborts the request.
    pub(super) async fn whole(mut self) -> Result<Response, ApiError> {
        let osl = self.osl();
        let all = self.progress.wait_for(|it| it.generated >= osl).await;
        let cached = all.map_err(|_| Stopped)?.cached;
        Ok(super::json(match self.endpoint {
            Endpoint::Responses => responses::whole(&self, cached),
            Endpoint::Messages => messages::whole(&self, cached),
            _ => openai::whole(&self, cached),
        }))
    }

    /// Tells it token by token as server-sent events. Dropping the response's body aborts the request.
    pub(super) fn stream(self) -> Response {
        let frames = stream::unfold((self, Some(0)), |(mut answer, sent)| async move {
            let sent = sent?;
            let mut frames = Frames::default();
            let now = answer.progress.wait_for(|it| it.generated > sent).await;
            let now = now.map(|it| *it);
            let next = match now {
                Ok(now) => answer.write(sent, now, &mut frames),
                Err(_) => {
                    frames.data(&ApiError::from(Stopped).json());
                    None
                }
            };
            let done = matches!(answer.endpoint, Endpoint::Chat | Endpoint::Completions);
            if next.is_none() && done {
                frames.data("[DONE]");
            }
            let bytes = Bytes::from(frames.0);
            Some((Ok::<_, std::convert::Infallible>(bytes), (answer, next)))
        });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        (headers, Body::from_stream(frames)).into_response()
    }

    /// Writes the tokens after `sent`; what was sent then, or none when that was all.
    fn write(&self, sent: usize, now: Progress, frames: &mut Frames) -> Option<usize> {
        match self.endpoint {
            Endpoint::Responses => responses::write(self, sent, now, frames),
            Endpoint::Messages => messages::write(self, sent, now, frames),
            _ => openai::write(self, sent, now, frames),
        }
        (now.generated < self.osl()).then_some(now.generated)
    }

    /// Output tokens.
    pub(super) fn osl(&self) -> usize {
        self.tokens.len() - self.isl
    }

    pub(super) fn output(&self) -> &[u32] {
        &self.tokens[self.isl..]
    }

    /// The text of output tokens `from..to`. Only a text completion's begins with the space of its first word.
    pub(super) fn text(&self, from: usize, to: usize) -> String {
        let mut text = tokenizer::decode(&self.output()[from..to]);
        if from == 0 && self.endpoint != Endpoint::Completions && text.starts_with(' ') {
            text.remove(0);
        }
        text
    }

    /// Whether it ends by itself, not because it may be no longer.
    pub(super) fn ends(&self) -> bool {
        self.output().last() == Some(&END)
    }

    /// The prompt's token ids, where they were asked for.
    pub(super) fn prompt_ids(&self) -> Option<&[u32]> {
        self.token_ids.then(|| &self.tokens[..self.isl])
    }

    /// The ids of output tokens `from..to`, where they were asked for.
    pub(super) fn output_ids(&self, from: usize, to: usize) -> Option<&[u32]> {
        self.token_ids.then(|| &self.output()[from..to])
    }

    /// Tokens of the prompt that were computed and kept in whole blocks.
    pub(super) fn newly_cached(&self, cached: Tokens) -> u64 {
        let size = u64::from(self.block_size.get());
        (self.isl as u64 / size * size).saturating_sub(cached.get())
    }
}

/// Server-sent events.
#[derive(Default)]
pub(super) struct Frames(String);

impl Frames {
    /// One event without a name.
    pub(super) fn data(&mut self, data: &str) {
        self.0.push_str("data: ");
        self.0.push_str(data);
        self.0.push_str("\n\n");
    }

    /// One event under its name, which is also its `type`.
    pub(super) fn event(&mut self, name: &str, data: &impl Serialize) {
        self.0.push_str("event: ");
        self.0.push_str(name);
        self.0.push('\n');
        self.data(&text_of(data));
    }
}

/// `value` as JSON.
pub(super) fn text_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts, numbers and lists have a JSON form")
}
