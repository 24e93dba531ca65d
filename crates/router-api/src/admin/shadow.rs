//! What the policy in the shadow would have done.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get};

use super::wants_text;
use crate::error::ApiError;
use crate::replica::Replica;
use crate::view::{ShadowView, describe_shadow};

pub(super) fn routes(replica: Arc<Replica>) -> Router {
    Router::new()
        .route("/api/v1/shadow", get(shadow))
        .with_state(replica)
}

/// As JSON, or as text for a client that accepts `text/plain`.
async fn shadow(
    State(replica): State<Arc<Replica>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let report = replica.shadow.report().ok_or_else(|| {
        ApiError::invalid("no policy is in the shadow: set router.shadow to one, and start again")
    })?;
    let view = ShadowView::of(&report, replica.config.policy);
    Ok(match wants_text(&headers) {
        true => describe_shadow(&view).into_response(),
        false => Json(view).into_response(),
    })
}
