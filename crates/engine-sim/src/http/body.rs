//! Request bodies, read as far as the fake engine looks at them; other fields pass unread.

use std::borrow::Cow;

use domain::Endpoint;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::ApiError;
use super::prompt::Prompt;
use crate::tokenizer;

/// The body of a request of any endpoint that generates, and of `/tokenize`.
#[derive(Deserialize)]
pub(super) struct GenerateBody<'a> {
    #[serde(borrow)]
    pub(super) model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) messages: Option<Vec<Message<'a>>>,
    prompt: Option<Prompt>,
    /// Of responses.
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<Cow<'a, str>>,
    /// Of Anthropic's messages: what stands before them.
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    /// SGLang's: the tokens of a chat.
    input_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    add_generation_prompt: Option<bool>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) n: Option<u32>,
    pub(super) max_tokens: Option<i64>,
    pub(super) max_completion_tokens: Option<i64>,
    pub(super) max_output_tokens: Option<i64>,
    pub(super) min_tokens: Option<u32>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) return_token_ids: Option<bool>,
    #[serde(borrow)]
    pub(super) cache_salt: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) session_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) vllm_xargs: Option<ExtraArgs<'a>>,
    kv_transfer_params: Option<KvTransferParams>,
    /// TensorRT-LLM's: the conversation that it is a turn of.
    #[serde(borrow)]
    pub(super) conversation_params: Option<ConversationParams<'a>>,
    /// SGLang's: the rank that must run it, and its older name.
    pub(super) routed_dp_rank: Option<i64>,
    pub(super) data_parallel_rank: Option<i64>,
    /// SGLang's: whether a chat's answer says on which rank it ran.
    pub(super) return_meta_info: Option<bool>,
}

#[derive(Deserialize)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
}

#[derive(Deserialize)]
pub(super) struct ExtraArgs<'a> {
    #[serde(borrow)]
    pub(super) session_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
pub(super) struct ConversationParams<'a> {
    #[serde(borrow)]
    pub(super) conversation_id: Cow<'a, str>,
}

#[derive(Deserialize)]
struct KvTransferParams {
    prompt_token_ids: Option<Vec<u32>>,
}

/// One message of a chat.
#[derive(Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

/// The body of `/detokenize`.
#[derive(Deserialize)]
pub(super) struct DetokenizeBody<'a> {
    #[serde(borrow)]
    pub(super) model: Option<Cow<'a, str>>,
    pub(super) tokens: Vec<u32>,
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(error.to_string(), None))
}

impl<'a> DetokenizeBody<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        parsed(body)
    }
}

impl<'a> GenerateBody<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        parsed(body)
    }

    /// The prompt as `endpoint` has it.
    pub(super) fn tokens(&self, endpoint: Endpoint) -> Result<Vec<u32>, ApiError> {
        match endpoint {
            Endpoint::Chat => self.chat_tokens(),
            Endpoint::Completions | Endpoint::Embeddings => self.prompt_tokens(),
            Endpoint::Responses => self.response_tokens(),
            Endpoint::Messages => self.message_tokens(),
        }
    }

    /// The prompt of a text completion.
    pub(super) fn prompt_tokens(&self) -> Result<Vec<u32>, ApiError> {
        match &self.prompt {
            Some(Prompt::Text(text)) => Ok(tokenizer::encode(text)),
            Some(Prompt::Tokens(tokens)) => Ok(tokens.clone()),
            None => Err(ApiError::bad_request("prompt is missing", Some("prompt"))),
        }
    }

    /// The prompt of a chat: token ids where the client has them, else the template's.
    pub(super) fn chat_tokens(&self) -> Result<Vec<u32>, ApiError> {
        let given = self.kv_transfer_params.as_ref();
        let given = given.and_then(|it| it.prompt_token_ids.as_ref());
        if let Some(tokens) = given.or(self.input_ids.as_ref()) {
            return Ok(tokens.clone());
        }
        self.rendered_after(None, self.given_messages()?)
    }

    /// The prompt of a response: its instructions as a system message before its input.
    fn response_tokens(&self) -> Result<Vec<u32>, ApiError> {
        let missing = || ApiError::bad_request("input is missing", Some("input"));
        let input = self.input.ok_or_else(missing)?;
        let instructions = self.instructions.as_deref();
        let messages: Vec<Message<'_>> = if input.get().starts_with('[') {
            parsed(input.get().as_bytes())?
        } else {
            vec![Message {
                role: Cow::Borrowed("user"),
                content: Some(input),
                tool_calls: None,
            }]
        };
        self.rendered_after(instructions.map(Cow::Borrowed), &messages)
    }

    /// The prompt of Anthropic's messages: their system text as a message before them.
    fn message_tokens(&self) -> Result<Vec<u32>, ApiError> {
        let system = self.system.filter(|it| it.get() != "null");
        let system = system.map(content_text).transpose()?;
        self.rendered_after(system.map(Cow::Owned), self.given_messages()?)
    }

    fn given_messages(&self) -> Result<&[Message<'a>], ApiError> {
        let missing = || ApiError::bad_request("messages are missing", Some("messages"));
        self.messages.as_deref().ok_or_else(missing)
    }

    /// What the template makes of `messages` behind a system message.
    fn rendered_after(
        &self,
        system: Option<Cow<'_, str>>,
        messages: &[Message<'_>],
    ) -> Result<Vec<u32>, ApiError> {
        let contents = messages.iter().map(Message::text);
        let contents: Vec<_> = contents.collect::<Result<_, _>>()?;
        let system = system.as_deref().map(|content| tokenizer::Message {
            role: "system",
            content,
        });
        let rendered = messages.iter().zip(&contents);
        let rendered = rendered.map(|(message, content)| tokenizer::Message {
            role: &message.role,
            content,
        });
        let rendered = system.into_iter().chain(rendered);
        let tools = self.tools.map(RawValue::get).filter(|it| *it != "null");
        let ask = self.add_generation_prompt.unwrap_or(true);
        Ok(tokenizer::encode_chat(tools, rendered, ask))
    }
}

impl Message<'_> {
    /// What the template writes of it: its text, and tool calls as JSON.
    fn text(&self) -> Result<String, ApiError> {
        let content = self.content.map(content_text).transpose()?;
        let mut text = content.unwrap_or_default();
        if let Some(calls) = self
            .tool_calls
            .map(RawValue::get)
            .filter(|it| *it != "null")
        {
            text.push_str(calls);
        }
        Ok(text)
    }
}

/// Content as the template writes it: text as it is, other parts as JSON.
fn content_text(content: &RawValue) -> Result<String, ApiError> {
    let invalid = |error: serde_json::Error| {
        ApiError::bad_request(format!("content of a message: {error}"), Some("messages"))
    };
    let json = content.get();
    if json == "null" {
        return Ok(String::new());
    }
    if json.starts_with('"') {
        return serde_json::from_str(json).map_err(invalid);
    }
    if !json.starts_with('[') {
        return Ok(json.to_owned());
    }
    let parts: Vec<&RawValue> = serde_json::from_str(json).map_err(invalid)?;
    let mut text = String::new();
    for part in parts {
        let Part { text: of_part } = serde_json::from_str(part.get()).map_err(invalid)?;
        text.push_str(of_part.as_deref().unwrap_or(part.get()));
    }
    Ok(text)
}
