//! `POST /v1/responses`, as far as counting tokens needs it.

use domain::Tokens;
use serde_json::{Value, json};

use super::answer::{Answer, Frames, text_of};
use crate::driver::Progress;

/// All of an answer.
pub(super) fn whole(answer: &Answer, cached: Option<Tokens>) -> String {
    text_of(&completed(answer, cached))
}

/// The answer's beginning, a frame for each token after `sent`, and all of it behind the last one.
pub(super) fn write(answer: &Answer, sent: usize, now: Progress, frames: &mut Frames) {
    let mut frame = |name: &str, mut event: Value| {
        event["type"] = name.into();
        frames.event(name, &event);
    };
    if sent == 0 {
        let begun = object(answer, "in_progress", &[]);
        frame("response.created", json!({"response": begun}));
    }
    for at in sent..now.generated {
        let delta = answer.text(at, at + 1);
        let place = json!({"item_id": item_id(answer), "output_index": 0, "content_index": 0, "delta": delta});
        frame("response.output_text.delta", place);
    }
    if now.generated >= answer.osl() {
        let all = completed(answer, now.cached);
        frame("response.completed", json!({"response": all}));
    }
}

fn completed(answer: &Answer, cached: Option<Tokens>) -> Value {
    let text = answer.text(0, answer.osl());
    let message = json!({
        "id": item_id(answer),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    });
    let status = if answer.ends() {
        "completed"
    } else {
        "incomplete"
    };
    let mut object = object(answer, status, &[message]);
    object["usage"] = json!({
        "input_tokens": answer.isl,
        "input_tokens_details": {"cached_tokens": cached.map_or(0, Tokens::get)},
        "output_tokens": answer.osl(),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.isl + answer.osl(),
    });
    object
}

fn object(answer: &Answer, status: &str, output: &[Value]) -> Value {
    json!({
        "id": answer.id,
        "object": "response",
        "created_at": answer.created,
        "model": answer.model,
        "status": status,
        "output": output,
        "usage": null,
    })
}

fn item_id(answer: &Answer) -> String {
    format!("item_{}", answer.id)
}
