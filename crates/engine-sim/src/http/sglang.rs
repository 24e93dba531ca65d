//! What only SGLang's front end has.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use domain::{DpRank, Endpoint};
use engine_wire::Version;
use engine_wire::sglang::RANK_HEADER;

use super::body::GenerateBody;
use super::error::ApiError;
use super::{Shared, Surface, json, tokenize};

/// The first release with a field for the rank, under its older name.
const OLD_FIELD_SINCE: Version = Version::new(0, 5, 6);
/// The first release with a header for the rank, and with the field's new name.
const HEADER_SINCE: Version = Version::new(0, 5, 10);
/// The first release whose responses take a rank.
const RESPONSES_SINCE: Version = Version::new(0, 5, 20);

/// Its own routes.
pub(super) fn routes() -> Router<Arc<Surface>> {
    Router::new()
        .route("/v1/tokenize", post(tokenize))
        .route("/server_info", get(server_info))
        .route("/get_server_info", get(server_info))
        .route("/flush_cache", get(flush_cache).post(flush_cache))
}

/// Refuses what only makes sense with vLLM or without a stream.
pub(super) fn check(body: &GenerateBody<'_>, stream: bool) -> Result<(), ApiError> {
    if stream && body.return_meta_info == Some(true) {
        let message = "return_meta_info is not supported with streaming";
        return Err(ApiError::bad_request(message, None));
    }
    Ok(())
}

/// The rank asked for, in silence none where `endpoint` takes none. Chat, completions and newer responses take
/// it from header or body, and the header wins; messages only from the header.
pub(super) fn rank(
    surface: &Surface,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &GenerateBody<'_>,
) -> Result<Option<DpRank>, ApiError> {
    let release = &surface.release;
    if endpoint == Endpoint::Responses && !release.since(RESPONSES_SINCE) {
        return Ok(None);
    }
    let with_header = release.since(HEADER_SINCE);
    let field = body.routed_dp_rank.filter(|_| with_header);
    let old_field = body.data_parallel_rank;
    let field = field.or(old_field.filter(|_| release.since(OLD_FIELD_SINCE)));
    let header = headers.get(RANK_HEADER).filter(|_| with_header);
    let asked = match header {
        Some(value) => {
            let number = value.to_str().ok().and_then(|it| it.trim().parse().ok());
            Some(number.ok_or_else(|| {
                let message = format!("{RANK_HEADER} must be an integer, not {value:?}");
                ApiError::bad_request(message, None)
            })?)
        }
        None => field.filter(|_| endpoint != Endpoint::Messages),
    };
    let Some(asked) = asked else { return Ok(None) };
    match surface.ranks.local(asked) {
        Some(rank) => Ok(Some(rank)),
        None => {
            let end = surface.ranks.end();
            let message = format!("routed_dp_rank={asked} out of range [0, {end})");
            Err(ApiError::bad_request(message, None))
        }
    }
}

async fn server_info(State(surface): Shared) -> Response {
    json(surface.sources.clone())
}

async fn flush_cache(State(surface): Shared) -> Result<Response, ApiError> {
    let in_use = surface.driver.reset().await?;
    Ok(if in_use.is_empty() {
        "flushed\n".into_response()
    } else {
        let why = "not flushed: requests are running or waiting\n";
        (StatusCode::BAD_REQUEST, why).into_response()
    })
}

/// An error in SGLang's shape, which has no envelope.
pub(super) async fn as_sglang(response: Response) -> Response {
    match response.extensions().get::<ApiError>() {
        Some(error) => (response.status(), json(error.flat_json())).into_response(),
        None => response,
    }
}
