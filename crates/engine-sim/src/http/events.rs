//! What becomes of event messages on their way, told and changed.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::{Shared, json_of};
use crate::line::LineCounts;

#[derive(Serialize)]
struct Events {
    /// By rank, in their order.
    ranks: Vec<LineCounts>,
}

/// `GET /debug/events`.
pub(super) async fn show(State(surface): Shared) -> Response {
    let ranks = surface.lines.iter().map(|it| it.counts()).collect();
    json_of(&Events { ranks })
}

/// `POST /debug/events?cut=1` loses every message from now on, and `cut=0` none but those that are lost anyway.
pub(super) async fn cut(State(surface): Shared, RawQuery(query): RawQuery) -> StatusCode {
    let cut = match query.as_deref() {
        Some("cut=1") => true,
        Some("cut=0") => false,
        _ => return StatusCode::BAD_REQUEST,
    };
    for line in &surface.lines {
        line.cut(cut);
    }
    StatusCode::NO_CONTENT
}
