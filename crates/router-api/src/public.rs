//! The API that clients see.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use domain::Endpoint;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode, Uri};
use prometheus::{Encoder as _, TextEncoder};
use serde_json::json;

use crate::admin::workers;
use crate::bindings::finish;
use crate::caller::Caller;
use crate::error::{ApiError, excerpt};
use crate::infer::infer;
use crate::outcome::{Committed, outcome};
use crate::replica::Replica;
use crate::route::route;

const OPENAPI: &str = include_str!("openapi.json");

pub(crate) fn routes(committed: Arc<Committed>) -> Router {
    let replica = committed.replica.clone();
    let elsewhere = Router::new()
        .route("/v1/route", post(route))
        .route("/v1/outcome", post(outcome))
        .with_state(committed);
    let served = Endpoint::ALL
        .into_iter()
        .fold(Router::new(), |routes, endpoint| {
            let serve = move |caller, replica, request| infer(endpoint, caller, replica, request);
            routes.route(endpoint.path(), post(serve))
        });
    served
        .merge(elsewhere)
        .route("/finish_session", post(finish))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/liveness", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/readiness", get(readiness))
        .route("/workers", get(workers))
        .route("/metrics", get(metrics))
        .route(
            "/openapi.json",
            get(|| async { as_type("application/json", OPENAPI) }),
        )
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        // Bodies are limited where they are read, with an answer that says so.
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(replica)
}

async fn models(_: Caller, State(replica): State<Arc<Replica>>) -> Json<serde_json::Value> {
    let models = replica.mind.lock().models();
    let data = models.iter().map(|model| {
        json!({"id": model.as_str(), "object": "model", "created": 0, "owned_by": "rankway"})
    });
    Json(json!({"object": "list", "data": data.collect::<Vec<_>>()}))
}

async fn readiness(State(replica): State<Arc<Replica>>) -> Response {
    let health = &replica.context.health;
    let (missing, findings) = (health.missing(), health.findings());
    let status = match missing.is_empty() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (
        status,
        Json(json!({"ready": missing.is_empty(), "missing": missing, "findings": findings})),
    )
        .into_response()
}

async fn metrics(State(replica): State<Arc<Replica>>) -> Response {
    let mut text = Vec::new();
    let encoder = TextEncoder::new();
    let families = replica.context.registry.gather();
    match encoder.encode(&families, &mut text) {
        Ok(()) => as_type("text/plain; version=0.0.4", text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn unknown_path(State(replica): State<Arc<Replica>>, request: Request) -> Response {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let path = format!("{} {}", excerpt(method), excerpt(path));
    let response = ApiError::UnknownPath { path }.into_response();
    replica.count(None, response.status());
    response
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let path = excerpt(uri.path()).into_owned();
    let method = excerpt(method.as_str()).into_owned();
    ApiError::Method { path, method }.into_response()
}

fn as_type(content_type: &'static str, body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    let value = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
