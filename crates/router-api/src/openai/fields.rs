//! The fields that routing reads, borrowed from the body.

use std::fmt;
use std::time::Duration;

use affinity::BodyIds;
use domain::{Endpoint, SequenceHash, Tokens};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::error::{ApiError, excerpt};

/// Bytes of English text or JSON in a token, about: the length of a prompt that nobody has tokenised.
const BYTES_PER_TOKEN: u64 = 4;
/// How long the outcome of a committed decision is waited for, where nothing else is asked for: longer than a prefill
/// takes, and than a long answer takes that is told of now and then.
const LEASE: Duration = Duration::from_secs(300);
/// The longest that may be asked for: what nobody tells of takes up room for so long.
const LONGEST_LEASE_SECONDS: u64 = 3600;

/// A request's fields. What else there is passes unread.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct Fields<'a> {
    pub(crate) model: Option<String>,
    pub(crate) stream: Option<bool>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) cache_salt: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) stream_options: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) vllm_xargs: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    // The ranks that engines take in a body.
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) routed_dp_rank: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) data_parallel_rank: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) disagg_prefill_dp_rank: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) id_slot: Option<&'a RawValue>,
    // Of `/v1/route` alone.
    #[serde(borrow)]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    block_hashes: Option<&'a RawValue>,
    pub(crate) commit: Option<bool>,
    #[serde(borrow)]
    lease_seconds: Option<&'a RawValue>,
    // Where a conversation may be named; a wrong type is no error here.
    #[serde(borrow)]
    conversation: Option<&'a RawValue>,
    #[serde(borrow)]
    previous_response_id: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_cache_key: Option<&'a RawValue>,
    #[serde(borrow)]
    conversation_params: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    nvext: Option<&'a RawValue>,
    #[serde(borrow)]
    session_params: Option<&'a RawValue>,
}

/// What the engine will compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    /// These tokens.
    Tokens(Vec<u32>),
    /// Blocks of the model's block size, as the asker hashed them (`/v1/route`).
    Hashes(Vec<SequenceHash>),
    /// A text or messages, which the engine's tokenizer must see first.
    Text,
    /// Several prompts in one request, which share a place and no prefix, or nothing that can be read.
    Unread,
}

/// The texts of a body that may name its conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BodyTexts {
    conversation_params_conversation_id: Option<String>,
    session_id: Option<String>,
    nvext_agent_context_session_id: Option<String>,
    nvext_session_control_session_id: Option<String>,
    session_params_id: Option<String>,
    session_params_session_id: Option<String>,
    conversation: Option<String>,
    previous_response_id: Option<String>,
    prompt_cache_key: Option<String>,
}

impl<'a> Fields<'a> {
    /// Reads the fields of `body`.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, ApiError> {
        // A list of the fields' values in order would be read, too.
        if body.trim_ascii_start().starts_with(b"[") {
            return Err(ApiError::invalid("the request body is not a JSON object"));
        }
        serde_json::from_slice(body).map_err(|error| {
            let error = error.to_string();
            ApiError::invalid(format!("read the request body: {}", excerpt(&error)))
        })
    }

    /// The model, which every request names.
    pub(crate) fn model(&self) -> Result<&str, ApiError> {
        self.model.as_deref().ok_or_else(|| ApiError::Invalid {
            message: "the request names no model".to_owned(),
            param: Some("model"),
        })
    }

    /// Whether the answer is a stream of events.
    pub(crate) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    /// The salt that the client gives; none where it is `null` or empty.
    pub(crate) fn cache_salt(&self) -> Result<Option<String>, ApiError> {
        let Some(raw) = self.cache_salt else {
            return Ok(None);
        };
        let given = serde_json::from_str::<Option<String>>(raw.get());
        let given = given.map_err(|error| of_field("cache_salt", "a text", &error))?;
        Ok(given.filter(|it| !it.is_empty()))
    }

    /// The answer that the request goes on with; none where it is `null`.
    pub(crate) fn previous_response(&self) -> Result<Option<String>, ApiError> {
        let Some(raw) = self.previous_response_id else {
            return Ok(None);
        };
        let named = serde_json::from_str(raw.get());
        named.map_err(|error| of_field("previous_response_id", "a text", &error))
    }

    /// The endpoint that takes such a request, for a `/v1/route` that is not told it.
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self.messages {
            Some(_) => Endpoint::Chat,
            None => Endpoint::Completions,
        }
    }

    /// How long the outcome of what `/v1/route` commits to is waited for.
    pub(crate) fn lease(&self) -> Result<Duration, ApiError> {
        let Some(raw) = self.lease_seconds else {
            return Ok(LEASE);
        };
        let seconds = serde_json::from_str(raw.get()).ok();
        match seconds.filter(|it| (1..=LONGEST_LEASE_SECONDS).contains(it)) {
            Some(seconds) => Ok(Duration::from_secs(seconds)),
            None => Err(ApiError::Invalid {
                message: format!(
                    "lease_seconds is a whole number from 1 to {LONGEST_LEASE_SECONDS}"
                ),
                param: Some("lease_seconds"),
            }),
        }
    }

    /// What `/v1/route` is asked about: token ids or block hashes, else what an engine would compute.
    pub(crate) fn asked(&self, endpoint: Endpoint) -> Result<Prompt, ApiError> {
        if let Some(raw) = self.token_ids {
            return tokens("token_ids", raw).map(Prompt::Tokens);
        }
        if let Some(raw) = self.block_hashes {
            let hashes: Vec<u64> = serde_json::from_str(raw.get())
                .map_err(|error| of_field("block_hashes", "hashes", &error))?;
            let blocks: Vec<_> = hashes.into_iter().map(domain::BlockHash::new).collect();
            return Ok(Prompt::Hashes(domain::sequence_hashes(&blocks)));
        }
        self.prompt(endpoint)
    }

    /// What the engine will compute. No engine tells the tokens of the newer endpoints' requests.
    pub(crate) fn prompt(&self, endpoint: Endpoint) -> Result<Prompt, ApiError> {
        match endpoint {
            Endpoint::Chat | Endpoint::Completions => {}
            Endpoint::Responses | Endpoint::Messages | Endpoint::Embeddings => {
                return Ok(Prompt::Unread);
            }
        }
        if self.messages.is_some() {
            return Ok(Prompt::Text);
        }
        let Some(raw) = self.prompt else {
            return Ok(Prompt::Unread);
        };
        let mut bytes = raw.get().bytes().filter(|it| !it.is_ascii_whitespace());
        match (bytes.next(), bytes.next()) {
            (Some(b'"'), _) => Ok(Prompt::Text),
            (Some(b'['), Some(b'0'..=b'9')) => tokens("prompt", raw).map(Prompt::Tokens),
            (Some(b'['), Some(b'[')) => {
                let mut lists: Vec<Vec<u32>> = serde_json::from_str(raw.get())
                    .map_err(|error| of_field("prompt", "token ids", &error))?;
                match (lists.pop(), lists.is_empty()) {
                    (Some(only), true) => Ok(Prompt::Tokens(only)),
                    _ => Ok(Prompt::Unread),
                }
            }
            // Lists of texts, and what no engine takes: it shall say so itself.
            _ => Ok(Prompt::Unread),
        }
    }

    /// About how many tokens the prompt has, from its length in bytes.
    pub(crate) fn estimated_tokens(&self) -> Tokens {
        let texts = [
            self.prompt,
            self.messages,
            self.input,
            self.instructions,
            self.system,
        ];
        let texts = texts.into_iter().flatten();
        let bytes: u64 = texts.map(|raw| raw.get().len() as u64).sum();
        Tokens::new(bytes.div_ceil(BYTES_PER_TOKEN).max(1))
    }

    /// How urgent the body says the request is, in Dynamo's words; none of it where that is no whole number.
    pub(crate) fn hinted_priority(&self) -> Option<Option<i64>> {
        let hint = within(self.nvext, &["agent_hints", "priority"])?;
        let number = serde_json::from_str::<Option<i64>>(hint.get());
        number.map_or(Some(None), |it| it.map(Some))
    }

    /// The texts that may name the conversation.
    pub(crate) fn body_texts(&self) -> BodyTexts {
        BodyTexts {
            conversation_params_conversation_id: field(
                self.conversation_params,
                &["conversation_id"],
            ),
            session_id: text(self.session_id),
            nvext_agent_context_session_id: field(self.nvext, &["agent_context", "session_id"]),
            nvext_session_control_session_id: field(self.nvext, &["session_control", "session_id"]),
            session_params_id: field(self.session_params, &["id"]),
            session_params_session_id: field(self.session_params, &["session_id"]),
            conversation: text(self.conversation).or_else(|| field(self.conversation, &["id"])),
            previous_response_id: text(self.previous_response_id),
            prompt_cache_key: text(self.prompt_cache_key),
        }
    }
}

impl BodyTexts {
    pub(crate) fn ids(&self) -> BodyIds<'_> {
        BodyIds {
            conversation_params_conversation_id: self
                .conversation_params_conversation_id
                .as_deref(),
            session_id: self.session_id.as_deref(),
            nvext_agent_context_session_id: self.nvext_agent_context_session_id.as_deref(),
            nvext_session_control_session_id: self.nvext_session_control_session_id.as_deref(),
            session_params_id: self.session_params_id.as_deref(),
            session_params_session_id: self.session_params_session_id.as_deref(),
            conversation: self.conversation.as_deref(),
            previous_response_id: self.previous_response_id.as_deref(),
            prompt_cache_key: self.prompt_cache_key.as_deref(),
        }
    }
}

/// A value that is there, even if it is `null`: it has a place that can be edited.
pub(super) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

fn tokens(name: &'static str, raw: &RawValue) -> Result<Vec<u32>, ApiError> {
    serde_json::from_str(raw.get()).map_err(|error| of_field(name, "token ids", &error))
}

fn of_field(name: &'static str, what: &str, error: &serde_json::Error) -> ApiError {
    ApiError::Invalid {
        message: format!("read {name} as {what}: {}", excerpt(&error.to_string())),
        param: Some(name),
    }
}

fn text(raw: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(raw?.get()).ok()
}

/// The text at `path` within `raw`; none where any step of it is missing or something else.
fn field(raw: Option<&RawValue>, path: &[&str]) -> Option<String> {
    text(within(raw, path))
}

/// What is at `path` within `raw`. What is beside it is passed over: a tree of it would be many times as large as the
/// body.
fn within<'a>(raw: Option<&'a RawValue>, path: &[&str]) -> Option<&'a RawValue> {
    let mut at = raw?;
    for step in path {
        let mut json = serde_json::Deserializer::from_str(at.get());
        at = Member(step).deserialize(&mut json).ok()??;
    }
    Some(at)
}

/// Takes the member of this name out of an object; the last of several.
struct Member<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = members.next_key::<String>()? {
            if name == self.0 {
                found = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(json: &str) -> Option<String> {
        let raw: &RawValue = serde_json::from_str(json).unwrap();
        field(Some(raw), &["agent_context", "session_id"])
    }

    #[test]
    fn a_text_is_found_at_its_path_and_nowhere_else() {
        let beside =
            r#"{"a":[1,{"session_id":"no"}],"agent_context":{"b":2,"session_id":"s"},"z":0}"#;
        assert_eq!(found(beside), Some("s".to_owned()));
        let twice = r#"{"agent_context":{"session_id":"s","session_id":"t"}}"#;
        assert_eq!(found(twice), Some("t".to_owned()));
        let escaped = r#"{"agent\u005fcontext":{"session_id":"\u0073"}}"#;
        assert_eq!(found(escaped), Some("s".to_owned()));
        for none in [
            "7",
            "[]",
            "{}",
            r#"{"session_id":"s"}"#,
            r#"{"agent_context":"s"}"#,
            r#"{"agent_context":{"session_id":5}}"#,
            r#"{"agent_context":{"session_id":null}}"#,
        ] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn what_only_route_takes_counts_nowhere_else() {
        let body = br#"{"model":"m","prompt":[1,2],"token_ids":[3],"block_hashes":"none"}"#;
        let fields = Fields::read(body).unwrap();
        let completions = Endpoint::Completions;
        assert_eq!(
            fields.prompt(completions).unwrap(),
            Prompt::Tokens(vec![1, 2])
        );
        assert_eq!(fields.asked(completions).unwrap(), Prompt::Tokens(vec![3]));
        let hashes = Fields::read(br#"{"block_hashes":[1]}"#).unwrap();
        assert_eq!(hashes.prompt(completions).unwrap(), Prompt::Unread);
        assert!(matches!(hashes.asked(completions).unwrap(), Prompt::Hashes(it) if it.len() == 1));
        let wrong = Fields::read(br#"{"block_hashes":"none"}"#).unwrap();
        assert!(wrong.asked(completions).is_err());
    }

    #[test]
    fn a_list_of_values_is_no_request() {
        let list =
            br#" ["m",false,null,null,null,"hi",null,null,null,null,null,null,null,null,null]"#;
        assert!(Fields::read(list).is_err());
    }
}
