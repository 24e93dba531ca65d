//! Request bodies, read as far as the fake engine looks at them; other fields pass unread.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::ApiError;
use crate::tokenizer;

/// The body of chat and text completions, and of `/tokenize`.
#[derive(Deserialize)]
pub(super) struct GenerateBody<'a> {
    #[serde(borrow)]
    pub(super) model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) messages: Option<Vec<Message<'a>>>,
    prompt: Option<Prompt>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    add_generation_prompt: Option<bool>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) n: Option<u32>,
    pub(super) max_tokens: Option<i64>,
    pub(super) max_completion_tokens: Option<i64>,
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
        if let Some(tokens) = given.and_then(|it| it.prompt_token_ids.clone()) {
            return Ok(tokens);
        }
        let missing = || ApiError::bad_request("messages are missing", Some("messages"));
        let messages = self.messages.as_deref().ok_or_else(missing)?;
        let contents = messages.iter().map(Message::text);
        let contents: Vec<_> = contents.collect::<Result<_, _>>()?;
        let rendered = messages.iter().zip(&contents);
        let rendered = rendered.map(|(message, content)| tokenizer::Message {
            role: &message.role,
            content,
        });
        let tools = self.tools.map(RawValue::get).filter(|it| *it != "null");
        let ask = self.add_generation_prompt.unwrap_or(true);
        Ok(tokenizer::encode_chat(tools, rendered, ask))
    }
}

impl Message<'_> {
    /// Its content as the template writes it: text as it is, other parts and tool calls as JSON.
    fn text(&self) -> Result<String, ApiError> {
        let invalid = |error: serde_json::Error| {
            ApiError::bad_request(format!("content of a message: {error}"), Some("messages"))
        };
        let mut text = match self.content.map(RawValue::get) {
            None | Some("null") => String::new(),
            Some(json) if json.starts_with('"') => serde_json::from_str(json).map_err(invalid)?,
            Some(json) if json.starts_with('[') => {
                let parts: Vec<&RawValue> = serde_json::from_str(json).map_err(invalid)?;
                let mut text = String::new();
                for part in parts {
                    let Part { text: of_part } =
                        serde_json::from_str(part.get()).map_err(invalid)?;
                    text.push_str(of_part.as_deref().unwrap_or(part.get()));
                }
                text
            }
            Some(json) => json.to_owned(),
        };
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

/// A prompt: text, token ids, or a list of exactly one of either. Token ids are read without a detour,
/// since prompts of a hundred thousand are common.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of token ids, or a list of one of these")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
        let mut tokens = match list.next_element()? {
            None => return Ok(Prompt::Tokens(Vec::new())),
            Some(Element::Token(token)) => vec![token],
            Some(Element::Prompt(prompt)) => {
                return match list.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(prompt),
                    Some(_) => Err(A::Error::custom(
                        "only one prompt per request is served here",
                    )),
                };
            }
        };
        while let Some(token) = list.next_element()? {
            tokens.push(token);
        }
        Ok(Prompt::Tokens(tokens))
    }
}

/// What a list may begin with.
enum Element {
    Token(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token id, a text or a list of token ids")
    }

    fn visit_u64<E: serde::de::Error>(self, token: u64) -> Result<Element, E> {
        let out_of_range = |_| E::custom(format!("{token} is no token id"));
        u32::try_from(token)
            .map(Element::Token)
            .map_err(out_of_range)
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Prompt(Prompt::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        let mut tokens = Vec::new();
        while let Some(token) = list.next_element()? {
            tokens.push(token);
        }
        Ok(Element::Prompt(Prompt::Tokens(tokens)))
    }
}
