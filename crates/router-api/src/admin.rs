//! The router's part of the admin API, under `/api/v1`.

mod decisions;
mod shadow;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::config::Config;
use crate::error::ApiError;
use crate::query::{Query, wrong};
use crate::replica::Replica;
use crate::view::{AccountView, TargetView, WorkerView, describe_account};

/// Seconds of which the waterfall can be told.
const WINDOW: RangeInclusive<u64> = 1..=3_600;

pub(crate) fn routes(replica: Arc<Replica>) -> Router {
    Router::new()
        .route("/api/v1/workers", get(workers))
        .route("/api/v1/targets", get(targets))
        .route("/api/v1/waterfall", get(waterfall))
        .route("/api/v1/config", get(config))
        .with_state(replica.clone())
        .merge(decisions::routes(replica.clone()))
        .merge(shadow::routes(replica))
}

pub(crate) async fn workers(State(replica): State<Arc<Replica>>) -> Json<Value> {
    let now = replica.clock.now();
    let router = replica.mind.lock();
    let workers = router
        .workers()
        .map(|it| WorkerView::of(&router, it, &replica.emptied, now));
    Json(json!({"workers": workers.collect::<Vec<_>>()}))
}

async fn targets(State(replica): State<Arc<Replica>>) -> Json<Value> {
    let now = replica.clock.now();
    let router = replica.mind.lock();
    let targets = router.workers().flat_map(|worker| {
        let router = &router;
        worker
            .ranks()
            .map(move |dp_rank| TargetView::of(router, worker, dp_rank, now))
    });
    Json(json!({"targets": targets.collect::<Vec<_>>()}))
}

/// As JSON, or as text for a client that accepts `text/plain`; of all requests, or with `since` of those of so many last
/// seconds.
async fn waterfall(
    State(replica): State<Arc<Replica>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let query = Query::read(query.as_deref(), &["since"])?;
    let window = query.parsed::<u64>("since")?;
    if window.is_some_and(|it| !WINDOW.contains(&it)) {
        return Err(wrong("since", &"it is from 1 to 3600 seconds"));
    }
    let window = window.map(Duration::from_secs);
    let sheet = replica.ledger.sheet(window, replica.clock.now());
    Ok(match wants_text(&headers) {
        true => describe_account(&sheet, window).into_response(),
        false => Json(AccountView::of(&sheet, window)).into_response(),
    })
}

/// Whether a person is to read the answer.
fn wants_text(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    accept.is_some_and(|it| it.as_bytes().starts_with(b"text/plain"))
}

/// The settings in force: a baseline policy runs without affinity, whatever was set.
async fn config(State(replica): State<Arc<Replica>>) -> Json<Config> {
    let affinity = match replica.config.policy.is_baseline() {
        true => affinity::Mode::Off.into(),
        false => replica.config.affinity.clone(),
    };
    Json(Config {
        affinity,
        ..replica.config.clone()
    })
}
