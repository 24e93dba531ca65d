//! What only vLLM's front end has.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use domain::{DpRank, Endpoint};
use engine_wire::Version;
use engine_wire::vllm::RANK_HEADER;
use serde::Serialize;

use super::body::{DetokenizeBody, GenerateBody};
use super::error::ApiError;
use super::{Shared, Surface, json, json_of};
use crate::tokenizer;

/// The first release that takes a rank.
const RANK_SINCE: Version = Version::new(0, 11, 2);
/// The first release that says where its ranks publish.
const SOURCES_SINCE: Version = Version::new(0, 31, 0);

/// Its own routes.
pub(super) fn routes(surface: &Surface) -> Router<Arc<Surface>> {
    let mut routes = Router::new()
        .route("/detokenize", post(detokenize))
        .route("/version", get(version))
        .route("/reset_prefix_cache", post(reset_prefix_cache));
    for endpoint in Endpoint::ALL {
        let render = move |surface: Shared, body: Bytes| render(surface, endpoint, body);
        routes = routes.route(&format!("{}/render", endpoint.path()), post(render));
    }
    if surface.release.since(SOURCES_SINCE) {
        routes = routes.route("/kv_event_sources", get(kv_event_sources));
    }
    routes
}

/// The rank asked for. What is no integer is ignored, as by old releases is everything, and one out of range
/// refused.
pub(super) fn rank(surface: &Surface, headers: &HeaderMap) -> Result<Option<DpRank>, ApiError> {
    let heard = surface.release.since(RANK_SINCE);
    let header = headers.get(RANK_HEADER).filter(|_| heard);
    let header = header.and_then(|it| it.to_str().ok());
    let Some(asked) = header.and_then(|it| it.trim().parse::<i64>().ok()) else {
        return Ok(None);
    };
    let ranks = match surface.misbehave.local_ranks {
        true => surface.ranks.counted_from_zero(),
        false => surface.ranks,
    };
    match ranks.local(asked) {
        Some(rank) => Ok(Some(rank)),
        None => {
            let (first, end) = (ranks.start, ranks.end());
            let message = format!("data_parallel_rank {asked} is out of range [{first}, {end}).");
            Err(ApiError::bad_request(message, None))
        }
    }
}

async fn version(State(surface): Shared) -> Response {
    json_of(&BTreeMap::from([("version", &surface.release.name)]))
}

async fn kv_event_sources(State(surface): Shared) -> Response {
    json(surface.sources.clone())
}

async fn detokenize(State(surface): Shared, body: Bytes) -> Result<Response, ApiError> {
    let body = DetokenizeBody::parse(&body)?;
    surface.adapter(body.model.as_deref())?;
    let text = tokenizer::decode(&body.tokens);
    Ok(json_of(&BTreeMap::from([("prompt", text)])))
}

#[derive(Serialize)]
struct Rendered<'a> {
    model: &'a str,
    token_ids: Vec<u32>,
}

/// What would be generated from, without generating: of a text completion a list, since it may have several
/// prompts.
async fn render(
    State(surface): Shared,
    endpoint: Endpoint,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body = GenerateBody::parse(&body)?;
    surface.adapter(body.model.as_deref())?;
    let rendered = Rendered {
        model: body.model.as_deref().unwrap_or(surface.model.as_str()),
        token_ids: body.tokens(endpoint)?,
    };
    Ok(match endpoint {
        Endpoint::Completions => json_of(&[rendered]),
        _ => json_of(&rendered),
    })
}

#[derive(Serialize)]
struct Reset {
    /// Whether every rank forgot: one that runs requests keeps its cache.
    success: bool,
}

async fn reset_prefix_cache(State(surface): Shared) -> Result<Response, ApiError> {
    let in_use = surface.driver.reset().await?;
    Ok(json_of(&Reset {
        success: in_use.is_empty(),
    }))
}
