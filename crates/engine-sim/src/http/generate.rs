//! From the body of a request to a job, and from its progress to an answer.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use domain::{DpRank, Endpoint, HashSeed, SequenceHash, block_hashes, sequence_hashes};

use super::answer::Answer;
use super::body::GenerateBody;
use super::error::ApiError;
use super::{Shared, Surface, sglang, tensorrt_llm, vllm};
use crate::dialect::Dialect;
use crate::driver::Job;
use crate::gathered;
use crate::generator::Generator;

const SESSION_HEADER: &str = "x-session-id";
const REQUEST_ID_HEADER: &str = "x-request-id";
/// OpenAI's default for text completions.
const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// `POST /v1/chat/completions`.
pub(super) async fn chat(
    State(surface): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    generate(&surface, Endpoint::Chat, &headers, &body).await
}

/// `POST /v1/completions`.
pub(super) async fn completions(
    State(surface): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    generate(&surface, Endpoint::Completions, &headers, &body).await
}

/// `POST /v1/responses`.
pub(super) async fn responses(
    State(surface): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    generate(&surface, Endpoint::Responses, &headers, &body).await
}

/// `POST /v1/messages`.
pub(super) async fn messages(
    State(surface): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    generate(&surface, Endpoint::Messages, &headers, &body).await
}

async fn generate(
    surface: &Surface,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, ApiError> {
    let body = &GenerateBody::parse(body)?;
    let prompt = body.tokens(endpoint)?;
    let lora = surface.adapter(body.model.as_deref())?;
    if body.n.is_some_and(|n| n != 1) {
        let message = "only n = 1 is served here";
        return Err(ApiError::bad_request(message, Some("n")));
    }
    let stream = body.stream == Some(true);
    if surface.dialect == Dialect::Sglang {
        sglang::check(body, stream)?;
    }
    let max_tokens = max_tokens(surface, body, prompt.len(), endpoint)?;
    let min_tokens = match body.ignore_eos {
        Some(true) => u32::MAX,
        _ => body.min_tokens.unwrap_or(0),
    };
    let isl = prompt.len();
    let mut tokens = prompt;
    let output = Generator::after(surface.seed, &tokens).answer(min_tokens, max_tokens);
    tokens.extend(output);

    let salt = salt(body)?;
    let seed = HashSeed::of(lora.as_deref(), salt.as_deref());
    let blocks = block_hashes(&tokens, surface.engine.block_size, seed);
    let chain: Arc<[SequenceHash]> = sequence_hashes(&blocks).into();
    let gathered = gathered::blocks(&tokens, &chain, surface.engine.block_size, seed);
    let tokens: Arc<[u32]> = tokens.into();
    let request_id = headers.get(REQUEST_ID_HEADER);
    let request_id = request_id.and_then(|it| it.to_str().ok());
    let accepted = surface
        .driver
        .submit(Job {
            tokens: Arc::clone(&tokens),
            isl,
            chain,
            gathered,
            lora,
            salt,
            session: session(headers, body),
            rank: rank(surface, endpoint, headers, body)?,
            conversation: tensorrt_llm::conversation(surface, body)?,
            name: request_id.map(Arc::from),
        })
        .await??;
    let answer = Answer::new(surface, endpoint, body, (tokens, isl), accepted, request_id);
    if stream {
        Ok(answer.stream())
    } else {
        answer.whole().await
    }
}

/// The model's rank that the request must run on.
fn rank(
    surface: &Surface,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &GenerateBody<'_>,
) -> Result<Option<DpRank>, ApiError> {
    if surface.misbehave.ignore_rank.contains(&endpoint) {
        return Ok(None);
    }
    match surface.dialect {
        Dialect::Vllm => vllm::rank(surface, headers),
        Dialect::Sglang => sglang::rank(surface, endpoint, headers, body),
        Dialect::TensorRtLlm => tensorrt_llm::rank(surface, headers),
    }
}

/// How long the answer may be: what was asked for, which must fit, else what fits.
fn max_tokens(
    surface: &Surface,
    body: &GenerateBody<'_>,
    isl: usize,
    endpoint: Endpoint,
) -> Result<u32, ApiError> {
    let longest = surface.max_model_len;
    if isl == 0 {
        return Err(ApiError::bad_request(
            "The prompt cannot be empty.",
            Some("prompt"),
        ));
    }
    let room = u32::try_from(isl)
        .ok()
        .and_then(|isl| longest.checked_sub(isl));
    let Some(room) = room.filter(|room| *room > 0) else {
        let message = format!(
            "This model's maximum context length is {longest} tokens. However, your prompt contains {isl} \
             input tokens, which exceeds this limit even without any output tokens. Please reduce the \
             length of the input prompt. (parameter=input_tokens, value={isl})"
        );
        return Err(ApiError::bad_request(message, Some("input_tokens")));
    };
    let asked = match endpoint {
        Endpoint::Chat => body.max_completion_tokens.or(body.max_tokens),
        Endpoint::Responses => body.max_output_tokens,
        _ => body.max_tokens,
    };
    match asked {
        Some(asked) if asked < 1 => {
            let message = format!(
                "max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})"
            );
            Err(ApiError::bad_request(message, Some("max_tokens")))
        }
        Some(asked) => u32::try_from(asked)
            .ok()
            .filter(|asked| *asked <= room)
            .ok_or_else(|| {
                let message = format!(
                    "This model's maximum context length is {longest} tokens. However, you requested \
                     {asked} output tokens and your prompt has {isl} tokens."
                );
                ApiError::bad_request(message, Some("max_tokens"))
            }),
        None if endpoint == Endpoint::Completions => Ok(DEFAULT_COMPLETION_TOKENS.min(room)),
        None => Ok(room),
    }
}

fn salt(body: &GenerateBody<'_>) -> Result<Option<Arc<str>>, ApiError> {
    match body.cache_salt.as_deref() {
        Some("") => {
            let message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)";
            Err(ApiError::bad_request(message, Some("cache_salt")))
        }
        salt => Ok(salt.map(Arc::from)),
    }
}

fn session(headers: &HeaderMap, body: &GenerateBody<'_>) -> Option<Arc<str>> {
    let from_header = || headers.get(SESSION_HEADER).and_then(|it| it.to_str().ok());
    let from_extra = || body.vllm_xargs.as_ref()?.session_id.as_deref();
    let session = body
        .session_id
        .as_deref()
        .or_else(from_header)
        .or_else(from_extra);
    session.map(Arc::from)
}
