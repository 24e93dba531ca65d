//! What only the worker of `deploy/trtllm` has.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use domain::DpRank;
use engine_wire::sglang::RANK_HEADER;
use serde::Serialize;

use super::body::GenerateBody;
use super::error::ApiError;
use super::{Shared, Surface, json, json_of};
use crate::conversations::RankSource;

const NO_EVENTS: &str = "start the worker with --publish-kv-events";

/// Its own routes.
pub(super) fn routes() -> Router<Arc<Surface>> {
    Router::new()
        .route("/worker_info", get(worker_info))
        .route("/version", get(version))
        .route("/kv_cache_events", post(kv_cache_events))
}

/// The rank asked for. What would be ignored is refused.
pub(super) fn rank(surface: &Surface, headers: &HeaderMap) -> Result<Option<DpRank>, ApiError> {
    let Some(header) = headers.get(RANK_HEADER) else {
        return Ok(None);
    };
    let refused = |message: String| Err(ApiError::bad_request(message, None));
    let Some(asked) = header.to_str().ok().and_then(|it| it.parse::<u32>().ok()) else {
        return refused(format!("{RANK_HEADER} is a number"));
    };
    if surface.ranks.count <= asked {
        let end = surface.ranks.count;
        return refused(format!(
            "data_parallel_rank {asked} is out of range [0, {end})"
        ));
    }
    let source = surface.conversations.map(|it| it.rank_source);
    match source {
        Some(RankSource::Engine) => refused(format!(
            "the engine chooses the rank of conversations here: send no {RANK_HEADER}"
        )),
        Some(RankSource::Router) | None => Ok(Some(DpRank::new(asked))),
    }
}

/// The conversation, where it keeps them.
pub(super) fn conversation(
    surface: &Surface,
    body: &GenerateBody<'_>,
) -> Result<Option<Arc<str>>, ApiError> {
    let Some(params) = body.conversation_params.as_ref() else {
        return Ok(None);
    };
    let id = params.conversation_id.trim();
    match surface.conversations {
        None => Ok(None),
        Some(_) if id.is_empty() => {
            let message = "conversation_params.conversation_id is a text that is not empty";
            Err(ApiError::bad_request(message, Some("conversation_params")))
        }
        Some(_) => Ok(Some(id.into())),
    }
}

#[derive(Serialize)]
struct WorkerInfo<'a> {
    engine: &'static str,
    version: &'a str,
    dp_size: u32,
    tokens_per_block: u32,
    kv_blocks: u32,
    kv_events: bool,
    metrics: bool,
    conversation_affinity: bool,
    rank_source: RankSource,
    first_rank_recorded: Option<bool>,
}

async fn worker_info(State(surface): Shared) -> Response {
    let conversations = surface.conversations;
    json_of(&WorkerInfo {
        engine: surface.dialect.name(),
        version: &surface.release.name,
        dp_size: surface.ranks.count,
        tokens_per_block: surface.engine.block_size.get(),
        kv_blocks: surface.engine.kv_blocks,
        kv_events: surface.drained.is_some(),
        metrics: true,
        conversation_affinity: conversations.is_some(),
        rank_source: conversations.map_or(RankSource::Engine, |it| it.rank_source),
        first_rank_recorded: conversations.map_or(Some(true), |it| it.first_rank_recorded()),
    })
}

async fn version(State(surface): Shared) -> Response {
    json_of(&BTreeMap::from([("version", &surface.release.name)]))
}

async fn kv_cache_events(State(surface): Shared) -> Result<Response, ApiError> {
    match &surface.drained {
        Some(drained) => Ok(json(drained.take())),
        None => Err(ApiError::bad_request(NO_EVENTS, None)),
    }
}
