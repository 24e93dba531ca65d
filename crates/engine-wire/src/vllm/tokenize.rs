//! `POST /tokenize`: asking a server which tokens a request has.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::TokenizeError;

/// The fields of a request that decide its tokens. Everything passes as it came.
#[derive(Deserialize, Serialize)]
struct Request<'a> {
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    model: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    messages: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    chat_template: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    mm_processor_kwargs: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    add_generation_prompt: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    continue_final_message: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    add_special_tokens: Option<&'a RawValue>,
}

/// An answer of `/tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Tokenized {
    /// How many tokens.
    pub count: u64,
    /// The longest context in tokens, where the server says.
    pub max_model_len: Option<u32>,
    /// The token ids.
    pub tokens: Vec<u32>,
}

/// The body of `POST /tokenize` that gives the tokens of a chat or completion request.
pub fn tokenize_request(request: &[u8]) -> Result<Vec<u8>, TokenizeError> {
    let mut request: Request<'_> = serde_json::from_slice(request)?;
    if request.messages.is_some() {
        request.prompt = None;
    } else if !request
        .prompt
        .is_some_and(|prompt| prompt.get().starts_with('"'))
    {
        return Err(TokenizeError::NoText);
    }
    Ok(serde_json::to_vec(&request)?)
}

/// Reads an answer of `POST /tokenize`.
pub fn parse_tokenized(body: &[u8]) -> Result<Tokenized, TokenizeError> {
    Ok(serde_json::from_slice(body)?)
}

/// The body of an answer of `POST /tokenize`.
pub fn encode_tokenized(answer: &Tokenized) -> String {
    serde_json::to_string(answer).expect("numbers have a JSON form")
}
