//! Answers, whole or streamed, in OpenAI's shapes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use domain::{Tokens, Usage};
use engine_wire::vllm::encode_usage;
use futures::stream;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::Surface;
use super::body::GenerateBody;
use super::error::ApiError;
use crate::driver::{Progress, Stopped};
use crate::tokenizer::{self, END};

/// Which API an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Text,
}

/// An answer that is known and told as its tokens are generated.
pub(super) struct Answer {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// The prompt and the answer.
    tokens: Arc<[u32]>,
    isl: usize,
    usage_in_stream: bool,
    token_ids: bool,
}

#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct Text<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: &'a str,
}

impl Answer {
    /// The answer to `body`, whose prompt is the first `isl` of `tokens`.
    pub(super) fn new(
        surface: &Surface,
        kind: Kind,
        body: &GenerateBody<'_>,
        tokens: Arc<[u32]>,
        isl: usize,
    ) -> Self {
        let options = body.stream_options.as_ref();
        let created = surface.clock.now().as_secs_f64() as u64;
        let number = surface.next_answer.fetch_add(1, Ordering::Relaxed);
        let model = body.model.as_deref().unwrap_or(surface.model.as_str());
        let mut answer = Self {
            kind,
            id: String::new(),
            created,
            model: model.to_owned(),
            tokens,
            isl,
            usage_in_stream: options.and_then(|it| it.include_usage) == Some(true),
            token_ids: body.return_token_ids == Some(true),
        };
        answer.name(&format!("{created:x}{number:08x}"));
        answer
    }

    /// Takes over the client's name for the request.
    pub(super) fn with_request_id(mut self, request_id: Option<&str>) -> Self {
        if let Some(request_id) = request_id {
            self.name(request_id);
        }
        self
    }

    fn name(&mut self, request_id: &str) {
        let prefix = match self.kind {
            Kind::Chat => "chatcmpl",
            Kind::Text => "cmpl",
        };
        self.id = format!("{prefix}-{request_id}");
    }

    /// Waits for all of it. Dropping the future aborts the request.
    pub(super) async fn whole(
        self,
        mut progress: watch::Receiver<Progress>,
    ) -> Result<Response, ApiError> {
        let osl = self.osl();
        let all = progress.wait_for(|it| it.generated >= osl).await;
        let usage = self.usage(all.map_err(|_| Stopped)?.cached);
        let text = self.text(0, osl);
        let mut choice = self.choice(0, osl);
        match self.kind {
            Kind::Chat => {
                choice.message = Some(Text {
                    role: Some("assistant"),
                    content: &text,
                });
            }
            Kind::Text => {
                choice.text = Some(&text);
                choice.prompt_token_ids = self.prompt_ids();
            }
        }
        let choices = [choice];
        let mut object = match self.kind {
            Kind::Chat => self.object("chat.completion", &choices),
            Kind::Text => self.object("text_completion", &choices),
        };
        if self.kind == Kind::Chat {
            object.prompt_token_ids = self.prompt_ids();
        }
        object.usage = Some(&usage);
        Ok(super::json(object.json()))
    }

    /// Tells it token by token as server-sent events. Dropping the response's body aborts the request.
    pub(super) fn stream(self, progress: watch::Receiver<Progress>) -> Response {
        let start = (self, progress, Some(0));
        let frames = stream::unfold(start, |(answer, mut progress, sent)| async move {
            let sent = sent?;
            let mut frames = String::new();
            let next = match progress.wait_for(|it| it.generated > sent).await {
                Ok(now) => answer.write_frames(sent, *now, &mut frames),
                Err(_) => {
                    frame(&mut frames, &ApiError::from(Stopped).json());
                    None
                }
            };
            if next.is_none() {
                frame(&mut frames, "[DONE]");
            }
            Some((
                Ok::<_, std::convert::Infallible>(Bytes::from(frames)),
                (answer, progress, next),
            ))
        });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        (headers, Body::from_stream(frames)).into_response()
    }

    /// Writes a frame for each token after `sent`; what was sent then, or none when that was all.
    fn write_frames(&self, sent: usize, now: Progress, frames: &mut String) -> Option<usize> {
        if sent == 0 && self.kind == Kind::Chat {
            let mut choice = self.choice(0, 0);
            choice.delta = Some(Text {
                role: Some("assistant"),
                content: "",
            });
            let choices = [choice];
            let mut object = self.chunk(&choices);
            object.prompt_token_ids = self.prompt_ids();
            frame(frames, &object.json());
        }
        for at in sent..now.generated {
            let text = self.text(at, at + 1);
            let mut choice = self.choice(at, at + 1);
            match self.kind {
                Kind::Chat => {
                    choice.delta = Some(Text {
                        role: None,
                        content: &text,
                    });
                }
                Kind::Text => {
                    choice.text = Some(&text);
                    choice.prompt_token_ids = self.prompt_ids().filter(|_| at == 0);
                }
            }
            frame(frames, &self.chunk(&[choice]).json());
        }
        if now.generated < self.osl() {
            return Some(now.generated);
        }
        if self.usage_in_stream {
            let usage = self.usage(now.cached);
            let mut object = self.chunk(&[]);
            object.usage = Some(&usage);
            frame(frames, &object.json());
        }
        None
    }

    fn osl(&self) -> usize {
        self.tokens.len() - self.isl
    }

    fn output(&self) -> &[u32] {
        &self.tokens[self.isl..]
    }

    /// The text of output tokens `from..to`. A chat's answer begins without the space of its first word.
    fn text(&self, from: usize, to: usize) -> String {
        let mut text = tokenizer::decode(&self.output()[from..to]);
        if from == 0 && self.kind == Kind::Chat && text.starts_with(' ') {
            text.remove(0);
        }
        text
    }

    /// A choice without its text, for output tokens `from..to`.
    fn choice(&self, from: usize, to: usize) -> Choice<'_> {
        let ends = to == self.osl();
        let reason = match self.output().last() {
            Some(&END) => "stop",
            _ => "length",
        };
        Choice {
            index: 0,
            message: None,
            delta: None,
            text: None,
            logprobs: None,
            finish_reason: ends.then_some(reason),
            token_ids: self.token_ids.then(|| &self.output()[from..to]),
            prompt_token_ids: None,
        }
    }

    fn usage(&self, cached: Option<Tokens>) -> Box<RawValue> {
        let usage = encode_usage(&Usage {
            prompt: Tokens::new(self.isl as u64),
            completion: Tokens::new(self.osl() as u64),
            cached,
        });
        RawValue::from_string(usage).expect("engine-wire encodes JSON")
    }

    /// The prompt's token ids, where they were asked for.
    fn prompt_ids(&self) -> Option<&[u32]> {
        self.token_ids.then(|| &self.tokens[..self.isl])
    }

    fn chunk<'a>(&'a self, choices: &'a [Choice<'a>]) -> Object<'a> {
        match self.kind {
            Kind::Chat => self.object("chat.completion.chunk", choices),
            Kind::Text => self.object("text_completion", choices),
        }
    }

    fn object<'a>(&'a self, object: &'static str, choices: &'a [Choice<'a>]) -> Object<'a> {
        Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage: None,
            prompt_token_ids: None,
        }
    }
}

impl Object<'_> {
    fn json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers have a JSON form")
    }
}

fn frame(frames: &mut String, data: &str) {
    frames.push_str("data: ");
    frames.push_str(data);
    frames.push_str("\n\n");
}
