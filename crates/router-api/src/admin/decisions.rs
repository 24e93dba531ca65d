//! Decisions: listed, exported as records, explained.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get};
use domain::{DecisionId, Timestamp};
use serde_json::json;

use super::wants_text;
use crate::error::{ApiError, excerpt};
use crate::query::{Query, wrong};
use crate::records;
use crate::replica::Replica;
use crate::view::{DecisionView, WhyNot, describe};

/// Decisions listed at once unless said otherwise.
const LISTED: usize = 100;
/// The most listed at once: some 20 MB of JSON among 128 targets, so that nobody waits long for their being written.
const MOST_LISTED: usize = 250;
/// JSON, one object a line.
const LINES: &str = "application/jsonl";

pub(super) fn routes(replica: Arc<Replica>) -> Router {
    Router::new()
        .route("/api/v1/decisions", get(list))
        .route("/api/v1/decisions/{id}", get(one))
        .with_state(replica)
}

/// The newest first: with `before` those made before that one, with `since` those of so many last seconds. With `whole`
/// only those that were committed to, as they are recorded: one a line, all that each was made from where it is true.
async fn list(
    State(replica): State<Arc<Replica>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = Query::read(query.as_deref(), &["limit", "before", "since", "whole"])?;
    let limit = query.parsed("limit")?.unwrap_or(LISTED);
    if !(1..=MOST_LISTED).contains(&limit) {
        return Err(wrong("limit", &format!("it is from 1 to {MOST_LISTED}")));
    }
    let before = query.parsed::<DecisionId>("before")?;
    let now = replica.clock.now().as_micros();
    let since = query.parsed::<u64>("since")?.map(|seconds| {
        let window = seconds.saturating_mul(1_000_000);
        Timestamp::from_micros(now.saturating_sub(window))
    });
    let whole = query.parsed::<bool>("whole")?;
    let entries = replica.ledger.recent(limit, before, since, whole.is_some());
    let Some(whole) = whole else {
        let views = entries.iter().map(|entry| DecisionView::of(entry, None));
        return Ok(Json(json!({"decisions": views.collect::<Vec<_>>()})).into_response());
    };
    let lines = records::lines(&entries, &replica.instance, whole);
    Ok(([(header::CONTENT_TYPE, LINES)], lines).into_response())
}

/// As JSON, or as text for a client that accepts `text/plain`. With `why_not` also why it did not go there.
async fn one(
    State(replica): State<Arc<Replica>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let query = Query::read(query.as_deref(), &["why_not"])?;
    let why_not = query.parsed::<WhyNot>("why_not")?;
    let entry = match id.as_str() {
        "last" => replica.ledger.last().ok_or(ApiError::UnknownDecision {
            why: "no decision has been made yet".to_owned(),
        })?,
        id => {
            let parsed = id.parse().map_err(|error: domain::InvalidId| {
                ApiError::invalid(format!(
                    "{:?}: {}",
                    excerpt(id),
                    excerpt(&error.to_string())
                ))
            })?;
            let entry = replica.ledger.get(parsed);
            entry.ok_or_else(|| forgotten(&replica, parsed))?
        }
    };
    let router = replica.mind.lock();
    let worker = router.worker(entry.decision.place.worker());
    let url = worker.map(|it| it.url.clone());
    drop(router);
    let mut view = DecisionView::of(&entry, url);
    if let Some(place) = why_not {
        view.why_not = Some(place.of(&entry.decision)?);
    }
    Ok(match wants_text(&headers) {
        true => describe(&view).into_response(),
        false => Json(view).into_response(),
    })
}

/// Why a decision is not here, and where it is.
fn forgotten(replica: &Replica, id: DecisionId) -> ApiError {
    let kept = replica.ledger.len();
    let why = match (replica.ids.made(id), replica.config.records) {
        (false, _) => {
            let router = &replica.instance;
            format!(
                "there is no decision {id}: {router} has not made it since it started; ask the router that has"
            )
        }
        (true, true) => format!(
            "{id} is not among the last {kept} decisions any more, which are all that the router remembers; for a day its \
             record is in the topic decisions of the bus, and what came of it in outcomes, unless it was a dry run"
        ),
        (true, false) => format!(
            "{id} is not among the last {kept} decisions any more, which are all that the router remembers; it was not \
             recorded (router.records is false)"
        ),
    };
    ApiError::UnknownDecision { why }
}
