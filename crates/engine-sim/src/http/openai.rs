//! Chat and text completions in OpenAI's shapes, as vLLM and SGLang fill them.

use domain::{Endpoint, Tokens};
use engine_wire::sglang::{MetaInfo, encode_meta_info};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answer::{Answer, Frames, text_of};
use crate::dialect::Dialect;
use crate::driver::Progress;

/// A field that is there and null.
const NULL: Option<()> = None;

#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(flatten)]
    nulls: Option<Nulls>,
}

/// What a whole answer of vLLM has to say nothing about.
#[derive(Serialize)]
struct Nulls {
    service_tier: Option<()>,
    system_fingerprint: Option<()>,
    kv_transfer_params: Option<()>,
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
    stop_reason: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta_info: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Text<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: &'a str,
}

/// All of an answer.
pub(super) fn whole(answer: &Answer, cached: Option<Tokens>) -> String {
    let osl = answer.osl();
    let text = answer.text(0, osl);
    let chat = answer.endpoint == Endpoint::Chat;
    let mut choice = choice(answer, 0, osl);
    if chat {
        choice.message = Some(Text {
            role: Some("assistant"),
            content: &text,
        });
        choice.meta_info = meta_info(answer, cached);
    } else {
        choice.text = Some(&text);
        choice.prompt_token_ids = answer.prompt_ids();
    }
    let choices = [choice];
    let mut object = match chat {
        true => object(answer, "chat.completion", &choices),
        false => object(answer, "text_completion", &choices),
    };
    if chat {
        object.prompt_token_ids = answer.prompt_ids();
    }
    object.usage = Some(usage(answer, cached));
    object.nulls = (answer.dialect == Dialect::Vllm).then_some(Nulls {
        service_tier: NULL,
        system_fingerprint: NULL,
        kv_transfer_params: NULL,
    });
    text_of(&object)
}

/// A frame for each token after `sent`; behind the last one the usage, where it was asked for.
pub(super) fn write(answer: &Answer, sent: usize, now: Progress, frames: &mut Frames) {
    let chat = answer.endpoint == Endpoint::Chat;
    if sent == 0 && chat {
        let mut choice = choice(answer, 0, 0);
        choice.delta = Some(Text {
            role: Some("assistant"),
            content: "",
        });
        let choices = [choice];
        let mut object = chunk(answer, &choices);
        object.prompt_token_ids = answer.prompt_ids();
        frames.data(&text_of(&object));
    }
    for at in sent..now.generated {
        let text = answer.text(at, at + 1);
        let mut choice = choice(answer, at, at + 1);
        if chat {
            choice.delta = Some(Text {
                role: None,
                content: &text,
            });
        } else {
            choice.text = Some(&text);
            choice.prompt_token_ids = answer.prompt_ids().filter(|_| at == 0);
        }
        frames.data(&text_of(&chunk(answer, &[choice])));
    }
    if now.generated >= answer.osl() && answer.usage_in_stream {
        let mut object = chunk(answer, &[]);
        object.usage = Some(usage(answer, now.cached));
        frames.data(&text_of(&object));
    }
}

/// A choice without its text, for output tokens `from..to`.
fn choice(answer: &Answer, from: usize, to: usize) -> Choice<'_> {
    let reason = if answer.ends() { "stop" } else { "length" };
    Choice {
        index: 0,
        message: None,
        delta: None,
        text: None,
        logprobs: NULL,
        finish_reason: (to == answer.osl()).then_some(reason),
        stop_reason: NULL,
        token_ids: answer.output_ids(from, to),
        prompt_token_ids: None,
        meta_info: None,
    }
}

/// What SGLang says of a request to those who ask.
fn meta_info(answer: &Answer, cached: Option<Tokens>) -> Option<Box<RawValue>> {
    let asked = answer.dialect == Dialect::Sglang && answer.meta_info;
    asked.then(|| {
        let info = MetaInfo::new(answer.rank, cached.unwrap_or_default().get());
        RawValue::from_string(encode_meta_info(&info)).expect("engine-wire encodes JSON")
    })
}

fn usage(answer: &Answer, cached: Option<Tokens>) -> Value {
    let mut usage = json!({
        "prompt_tokens": answer.isl,
        "total_tokens": answer.isl + answer.osl(),
        "completion_tokens": answer.osl(),
        "completion_tokens_details": null,
        "prompt_tokens_details": cached.map(|it| json!({"cached_tokens": it.get()})),
    });
    match (answer.dialect, cached) {
        (Dialect::Vllm, Some(cached)) => {
            let details = &mut usage["prompt_tokens_details"];
            details["created_cache_tokens"] = answer.newly_cached(cached).into();
            details["multimodal_tokens"] = Value::Null;
        }
        (Dialect::Vllm, None) | (Dialect::TensorRtLlm, _) => {}
        (Dialect::Sglang, _) => usage["reasoning_tokens"] = 0.into(),
    }
    usage
}

fn chunk<'a>(answer: &'a Answer, choices: &'a [Choice<'a>]) -> Object<'a> {
    match answer.endpoint {
        Endpoint::Chat => object(answer, "chat.completion.chunk", choices),
        _ => object(answer, "text_completion", choices),
    }
}

fn object<'a>(answer: &'a Answer, object: &'static str, choices: &'a [Choice<'a>]) -> Object<'a> {
    Object {
        id: &answer.id,
        object,
        created: answer.created,
        model: &answer.model,
        choices,
        usage: None,
        prompt_token_ids: None,
        nulls: None,
    }
}
