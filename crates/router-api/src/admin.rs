//! The router's part of the admin API, under `/api/v1`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::config::Config;
use crate::error::{ApiError, excerpt};
use crate::replica::Replica;
use crate::view::{DecisionView, TargetView, TotalsView, WorkerView, describe};

/// Decisions listed at once.
const LISTED: usize = 100;

pub(crate) fn routes(replica: Arc<Replica>) -> Router {
    Router::new()
        .route("/api/v1/workers", get(workers))
        .route("/api/v1/targets", get(targets))
        .route("/api/v1/decisions", get(decisions))
        .route("/api/v1/decisions/{id}", get(decision))
        .route("/api/v1/waterfall", get(waterfall))
        .route("/api/v1/config", get(config))
        .with_state(replica)
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

async fn decisions(State(replica): State<Arc<Replica>>) -> Json<Value> {
    let entries = replica.ledger.recent(LISTED);
    let views = entries.iter().map(|entry| DecisionView::of(entry, None));
    Json(json!({"decisions": views.collect::<Vec<_>>()}))
}

/// As JSON, or as text for a client that accepts `text/plain`.
async fn decision(
    State(replica): State<Arc<Replica>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let entry = match id.as_str() {
        "last" => replica.ledger.last(),
        id => match id.parse() {
            Ok(id) => replica.ledger.get(id),
            Err(error) => {
                let why = format!("{:?}: {}", excerpt(id), excerpt(&error.to_string()));
                return ApiError::invalid(why).into_response();
            }
        },
    };
    match entry {
        Some(entry) => {
            let router = replica.mind.lock();
            let worker = router.worker(entry.decision.place.worker());
            let url = worker.map(|it| it.url.clone());
            drop(router);
            let view = DecisionView::of(&entry, url);
            let accept = headers.get(header::ACCEPT);
            if accept.is_some_and(|it| it.as_bytes().starts_with(b"text/plain")) {
                return describe(&view).into_response();
            }
            Json(view).into_response()
        }
        None => ApiError::UnknownPath {
            path: format!("decision {id} among the last 10,000"),
        }
        .into_response(),
    }
}

async fn waterfall(State(replica): State<Arc<Replica>>) -> Json<TotalsView> {
    Json(TotalsView::of(&replica.ledger.totals()))
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
