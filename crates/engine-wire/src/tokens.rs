//! Asking an engine which tokens a request has, each in its own words.

use domain::EngineKind;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::vllm::tokenize_request;

/// Why no token ids can be asked for or read.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    /// It is not JSON of the expected shape.
    #[error("read the JSON")]
    Json(#[from] serde_json::Error),
    /// The request has neither messages nor a text as its prompt: the prompt is missing, or is token ids
    /// already, or several texts.
    #[error("the request has neither messages nor one text as its prompt")]
    NoText,
}

/// One question: a POST of `body`, JSON, to `path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The path.
    pub path: &'static str,
    /// The body.
    pub body: Vec<u8>,
    then: Then,
}

/// What the answer of status 200 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Tokens,
    /// The text of llama.cpp's chat template.
    Text,
}

/// What an answer leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The request's tokens.
    Tokens(Vec<u32>),
    /// There is one more question.
    Again(Ask),
}

/// How to ask an engine for the tokens of a chat or completion request, exactly as it would compute them. Send the
/// question, give its answer to [`Ask::read`], and go on until there are tokens; no engine needs more than two
/// questions.
pub fn ask_tokens(engine: EngineKind, request: &[u8]) -> Result<Ask, TokenizeError> {
    match engine {
        // Of TensorRT-LLM the worker in `deploy/trtllm` answers it; trtllm-serve has no such path.
        EngineKind::Vllm | EngineKind::TensorRtLlm => Ok(Ask {
            path: TOKENIZE,
            body: tokenize_request(request)?,
            then: Then::Tokens,
        }),
        EngineKind::Sglang => Ok(Ask {
            path: TOKENIZE,
            body: sglang_request(request)?,
            then: Then::Tokens,
        }),
        EngineKind::LlamaCpp => llama_cpp(request),
    }
}

const TOKENIZE: &str = "/tokenize";

impl Ask {
    /// Reads the answer to this question.
    pub fn read(&self, answer: &[u8]) -> Result<Asked, TokenizeError> {
        /// Neither `count` nor `max_model_len` is needed; SGLang may write -1 for the latter.
        #[derive(Deserialize)]
        struct Tokens {
            tokens: Vec<u32>,
        }
        #[derive(Deserialize)]
        struct Templated<'a> {
            #[serde(borrow)]
            prompt: &'a RawValue,
        }
        match self.then {
            Then::Tokens => {
                let answer: Tokens = serde_json::from_slice(answer)?;
                Ok(Asked::Tokens(answer.tokens))
            }
            Then::Text => {
                let answer: Templated<'_> = serde_json::from_slice(answer)?;
                Ok(Asked::Again(content(answer.prompt)?))
            }
        }
    }
}

/// The fields of a request that decide its tokens in SGLang. Everything passes as it came.
#[derive(Deserialize, Serialize)]
struct SglangRequest<'a> {
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    model: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    messages: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    tool_choice: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    continue_final_message: Option<&'a RawValue>,
}

fn sglang_request(request: &[u8]) -> Result<Vec<u8>, TokenizeError> {
    let mut request: SglangRequest<'_> = serde_json::from_slice(request)?;
    if request.messages.is_some() {
        request.prompt = None;
    } else if !request.prompt.is_some_and(is_text) {
        return Err(TokenizeError::NoText);
    }
    Ok(serde_json::to_vec(&request)?)
}

fn is_text(value: &RawValue) -> bool {
    value.get().starts_with('"')
}

/// llama.cpp's `/tokenize` knows texts only: a chat is first put through its template, by the fields of the request
/// that this looks at, which are all of it.
fn llama_cpp(request: &[u8]) -> Result<Ask, TokenizeError> {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        prompt: Option<&'a RawValue>,
        #[serde(borrow)]
        messages: Option<&'a RawValue>,
    }
    let parsed: Request<'_> = serde_json::from_slice(request)?;
    match (parsed.messages, parsed.prompt) {
        (Some(_), _) => Ok(Ask {
            path: "/apply-template",
            body: request.to_vec(),
            then: Then::Text,
        }),
        (None, Some(prompt)) if is_text(prompt) => content(prompt),
        (None, _) => Err(TokenizeError::NoText),
    }
}

/// Asks for the tokens of a prompt as generating adds and reads special ones.
fn content(text: &RawValue) -> Result<Ask, TokenizeError> {
    #[derive(Serialize)]
    struct Content<'a> {
        content: &'a RawValue,
        add_special: bool,
        parse_special: bool,
    }
    let body = Content {
        content: text,
        add_special: true,
        parse_special: true,
    };
    Ok(Ask {
        path: TOKENIZE,
        body: serde_json::to_vec(&body)?,
        then: Then::Tokens,
    })
}
