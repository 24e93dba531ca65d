//! `POST /v1/messages`, Anthropic's API, as far as counting tokens needs it.

use domain::Tokens;
use serde_json::{Value, json};

use super::answer::{Answer, Frames, text_of};
use crate::dialect::Dialect;
use crate::driver::Progress;

/// All of an answer.
pub(super) fn whole(answer: &Answer, cached: Option<Tokens>) -> String {
    let text = answer.text(0, answer.osl());
    let mut message = message(answer, &[json!({"type": "text", "text": text})]);
    message["stop_reason"] = stop_reason(answer).into();
    message["usage"] = usage(answer, cached, answer.osl());
    text_of(&message)
}

/// The message's beginning, a frame for each token after `sent`, and its end behind the last one.
pub(super) fn write(answer: &Answer, sent: usize, now: Progress, frames: &mut Frames) {
    let mut frame = |name: &str, mut event: Value| {
        event["type"] = name.into();
        frames.event(name, &event);
    };
    if sent == 0 {
        let mut message = message(answer, &[]);
        message["usage"] = usage(answer, now.cached, 0);
        frame("message_start", json!({"message": message}));
        let block = json!({"type": "text", "text": ""});
        frame(
            "content_block_start",
            json!({"index": 0, "content_block": block}),
        );
    }
    for at in sent..now.generated {
        let delta = json!({"type": "text_delta", "text": answer.text(at, at + 1)});
        frame("content_block_delta", json!({"index": 0, "delta": delta}));
    }
    if now.generated >= answer.osl() {
        frame("content_block_stop", json!({"index": 0}));
        let delta = json!({"stop_reason": stop_reason(answer), "stop_sequence": null});
        let usage = usage(answer, now.cached, answer.osl());
        frame("message_delta", json!({"delta": delta, "usage": usage}));
        frame("message_stop", json!({}));
    }
}

fn message(answer: &Answer, content: &[Value]) -> Value {
    json!({
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
    })
}

fn stop_reason(answer: &Answer) -> &'static str {
    if answer.ends() {
        "end_turn"
    } else {
        "max_tokens"
    }
}

fn usage(answer: &Answer, cached: Option<Tokens>, output: usize) -> Value {
    // Input is what neither came from the cache nor, with vLLM, went into it.
    let read = cached.unwrap_or_default();
    let mut usage = json!({"cache_read_input_tokens": read.get(), "output_tokens": output});
    let created = match answer.dialect {
        Dialect::Vllm => answer.newly_cached(read),
        Dialect::Sglang | Dialect::TensorRtLlm => 0,
    };
    if answer.dialect == Dialect::Vllm {
        usage["cache_creation_input_tokens"] = created.into();
    }
    usage["input_tokens"] = (answer.isl as u64 - read.get() - created).into();
    usage
}
