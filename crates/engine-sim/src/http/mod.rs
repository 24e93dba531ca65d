//! The engines' HTTP APIs, as far as routers and clients use them. What only one engine has is in `vllm`,
//! `sglang` and `tensorrt_llm`, what only one API has in `openai`, `responses` and `messages`.

mod answer;
mod body;
mod error;
mod events;
mod generate;
mod messages;
mod openai;
mod prompt;
mod responses;
mod sglang;
mod tensorrt_llm;
mod vllm;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use domain::{DpRank, Endpoint, ModelName, SequenceHash};
use engine_wire::vllm::{Tokenized, encode_tokenized};
use engine_wire::{Model, encode_models};
use serde::Serialize;
use service_kit::Clock;

use crate::config::Release;
use crate::conversations::Conversations;
use crate::dialect::Dialect;
use crate::drained::Drained;
use crate::driver::DriverHandle;
use crate::line::LineState;
use crate::metrics;
use crate::misbehaviour::Misbehaviour;
use crate::ranks::Ranks;
use body::GenerateBody;
use error::ApiError;

/// The largest request body: a prompt of some million token ids.
const MAX_BODY_BYTES: usize = 32 << 20;

/// What the handlers need.
#[derive(Debug)]
pub(crate) struct Surface {
    pub(crate) driver: DriverHandle,
    pub(crate) model: ModelName,
    pub(crate) lora_adapters: Vec<ModelName>,
    pub(crate) dialect: Dialect,
    pub(crate) release: Release,
    pub(crate) engine: engine_model::Config,
    pub(crate) ranks: Ranks,
    pub(crate) misbehave: Misbehaviour,
    pub(crate) max_model_len: u32,
    pub(crate) seed: u64,
    /// What says where its ranks publish: the body of `/kv_event_sources`, of SGLang that of `/server_info`.
    pub(crate) sources: String,
    /// How a TensorRT-LLM keeps conversations, where it does.
    pub(crate) conversations: Option<Conversations>,
    /// What it gives of its events; none where it gives none.
    pub(crate) drained: Option<Drained>,
    /// What becomes of the messages of each rank that publishes.
    pub(crate) lines: Vec<LineState>,
    pub(crate) clock: Clock,
    /// Numbers the answers.
    pub(crate) next_answer: AtomicU64,
}

impl Surface {
    /// The LoRA adapter that a model's name stands for, none for the base model.
    fn adapter(&self, model: Option<&str>) -> Result<Option<Arc<str>>, ApiError> {
        let Some(name) = model.filter(|name| *name != self.model.as_str()) else {
            return Ok(None);
        };
        let known = self.lora_adapters.iter().any(|it| it.as_str() == name);
        if known {
            Ok(Some(Arc::from(name)))
        } else {
            Err(ApiError::unknown_model(name, &self.model))
        }
    }
}

type Shared = State<Arc<Surface>>;

/// All routes.
pub(crate) fn routes(surface: Surface) -> Router {
    let shared = Router::new()
        .route(Endpoint::Chat.path(), post(generate::chat))
        .route(Endpoint::Completions.path(), post(generate::completions))
        .route("/v1/models", get(models))
        .route("/tokenize", post(tokenize))
        .route("/health", get(|| async { StatusCode::OK }))
        .route(
            "/ping",
            get(|| async { StatusCode::OK }).post(|| async { StatusCode::OK }),
        )
        .route("/metrics", get(metrics_text))
        .route("/debug/kv_blocks", get(kv_blocks))
        .route("/debug/requests", get(requests))
        .route("/debug/events", get(events::show).post(events::cut));
    let more = Router::new()
        .route(Endpoint::Responses.path(), post(generate::responses))
        .route(Endpoint::Messages.path(), post(generate::messages));
    let routes = match surface.dialect {
        Dialect::TensorRtLlm => shared.merge(tensorrt_llm::routes()),
        Dialect::Vllm => shared.merge(more).merge(vllm::routes(&surface)),
        Dialect::Sglang => shared
            .merge(more)
            .merge(sglang::routes())
            .layer(axum::middleware::map_response(sglang::as_sglang)),
    };
    routes
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::new(surface))
}

fn json(body: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body.into()).into_response()
}

fn json_of(value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).expect("texts, numbers and lists have a JSON form");
    json(text)
}

async fn models(State(surface): Shared) -> Response {
    let model = |name: &ModelName, parent: Option<&ModelName>| Model {
        name: name.clone(),
        max_model_len: Some(surface.max_model_len),
        parent: parent.cloned(),
    };
    let base = [model(&surface.model, None)];
    let adapters = surface.lora_adapters.iter();
    let adapters = adapters.map(|name| model(name, Some(&surface.model)));
    let all: Vec<_> = base.into_iter().chain(adapters).collect();
    let created = surface.clock.now().as_secs_f64() as u64;
    json(encode_models(&all, surface.dialect.owner(), created))
}

async fn tokenize(State(surface): Shared, body: Bytes) -> Result<Response, ApiError> {
    let body = GenerateBody::parse(&body)?;
    surface.adapter(body.model.as_deref())?;
    let tokens = if body.messages.is_some() {
        body.chat_tokens()?
    } else {
        body.prompt_tokens()?
    };
    Ok(json(encode_tokenized(&Tokenized {
        count: tokens.len() as u64,
        max_model_len: Some(surface.max_model_len),
        tokens,
    })))
}

async fn metrics_text(State(surface): Shared) -> Result<Response, ApiError> {
    let reports = surface.driver.report().await?;
    let model = surface.model.as_str();
    let text = metrics::text(surface.dialect, model, &surface.engine, &reports);
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

#[derive(Serialize)]
struct KvBlocks {
    ranks: BTreeMap<u32, RankBlocks>,
}

#[derive(Serialize)]
struct RankBlocks {
    /// Contents held, however many copies of each. Where the engine's pages are smaller, these are blocks of at
    /// least 16 tokens.
    blocks: usize,
    /// The wrapping sum of their digest terms, as 16 hexadecimal digits.
    digest: String,
    /// Their sequence hashes in decimal, ascending, when asked for with `list=1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_hashes: Option<Vec<String>>,
}

async fn kv_blocks(
    State(surface): Shared,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let list = query.is_some_and(|query| query.split('&').any(|pair| pair == "list=1"));
    let held = surface.driver.held().await?;
    let ranks = held.into_iter().map(|(rank, mut blocks)| {
        let terms = blocks.iter().map(|it| it.digest_term());
        let digest = terms.fold(0_u64, u64::wrapping_add);
        let of_rank = RankBlocks {
            blocks: blocks.len(),
            digest: format!("{digest:016x}"),
            sequence_hashes: list.then(|| {
                blocks.sort_unstable();
                blocks.iter().map(decimal).collect()
            }),
        };
        (rank.get(), of_rank)
    });
    Ok(json_of(&KvBlocks {
        ranks: ranks.collect(),
    }))
}

#[derive(Serialize)]
struct Requests<'a> {
    /// The last 65,536 that were served to their end, oldest first.
    requests: Vec<ServedRequest<'a>>,
}

#[derive(Serialize)]
struct ServedRequest<'a> {
    /// Its `x-request-id`.
    request_id: Option<&'a str>,
    dp_rank: u32,
    /// The rank that the request asked for.
    asked_dp_rank: Option<u32>,
    prompt_tokens: u64,
    cached_tokens: u64,
}

async fn requests(State(surface): Shared) -> Result<Response, ApiError> {
    let served = surface.driver.served().await?;
    let requests = served.iter().map(|it| ServedRequest {
        request_id: it.name.as_deref(),
        dp_rank: it.rank.get(),
        asked_dp_rank: it.asked.map(DpRank::get),
        prompt_tokens: it.isl.get(),
        cached_tokens: it.cached.get(),
    });
    Ok(json_of(&Requests {
        requests: requests.collect(),
    }))
}

fn decimal(sequence: &SequenceHash) -> String {
    sequence.get().to_string()
}
