//! `POST /v1/route`: a decision without a dispatch, for people who dispatch themselves.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use domain::{Endpoint, ModelName};
use http::{HeaderMap, Uri};
use routing::Decision;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::chain::Chain;
use crate::error::ApiError;
use crate::intake::{Intake, TokenSource};
use crate::openai::Fields;
use crate::outcome::Committed;
use crate::place::Placing;
use crate::query::{Query, wrong};
use crate::replica::Replica;
use crate::tenant::Tenant;
use crate::view::{DecisionView, RouteView, SendView};

/// Answers where a request would go. With `"commit": true` its work is reserved and its conversation bound there, until
/// its outcome is told or its lease ends; else the answer leaves nothing.
pub(crate) async fn route(
    Caller(tenant): Caller,
    State(committed): State<Arc<Committed>>,
    request: Request<Body>,
) -> Response {
    let (parts, body) = request.into_parts();
    let mut model = None;
    let routed = async {
        let path = path(&parts.uri)?;
        let sent = (&tenant, &parts.headers, path);
        serve(&committed, sent, body, &mut model).await
    };
    let routed = routed.await;
    let response = routed.unwrap_or_else(IntoResponse::into_response);
    committed.replica.count(model.as_ref(), response.status());
    response
}

/// The endpoint that the request will be sent to, where that is said.
fn path(uri: &Uri) -> Result<Option<Endpoint>, ApiError> {
    let query = Query::read(uri.query(), &["path"])?;
    let Some(path) = query.text("path") else {
        return Ok(None);
    };
    match Endpoint::of_path(path) {
        Some(endpoint) => Ok(Some(endpoint)),
        None => {
            let known = Endpoint::ALL.map(Endpoint::path).join(", ");
            Err(wrong("path", &format!("it is one of {known}")))
        }
    }
}

async fn serve(
    committed: &Committed,
    (tenant, headers, path): (&Arc<Tenant>, &HeaderMap, Option<Endpoint>),
    body: Body,
    model: &mut Option<ModelName>,
) -> Result<Response, ApiError> {
    let replica = &committed.replica;
    let limit = replica.config.max_body;
    let held = replica.bodies.read(headers, body, limit).await?;
    let received = Instant::now();
    let fields = Fields::read(&held.bytes)?;
    let lease = match fields.commit {
        Some(true) => Some(fields.lease()?),
        Some(false) | None => None,
    };
    let endpoint = path.unwrap_or(fields.endpoint());
    let mut intake = Intake::read(replica, (tenant, headers), endpoint, &fields)?;
    *model = Some(intake.model.clone());
    let source = TokenSource::of(replica, &intake, fields.asked(endpoint)?)?;
    let authorization = headers.get(http::header::AUTHORIZATION);
    let blocks = replica
        .blocks(source, &intake, &fields, &held.bytes, authorization)
        .await;
    replica.identify(&mut intake, &blocks, lease.is_some());
    let routed = Placing::routed(replica, &intake, &blocks, lease.is_some());
    let (mut placing, would_wait) = routed.await?;
    let decision = match lease {
        None => placing.preview()?,
        Some(lease) => {
            let mut turn = placing.place().await?;
            turn.dispatched_elsewhere(received, placing.tail(&turn.decision), tenant);
            let decision = turn.decision.clone();
            let kept = (turn, Chain::of(replica, &intake), blocks.count());
            committed.take(tenant, kept, lease)?;
            decision
        }
    };
    let view = view(replica, &intake, &decision, (would_wait, lease));
    Ok(Json(view).into_response())
}

fn view(
    replica: &Replica,
    intake: &Intake,
    decision: &Decision,
    (would_wait, lease): (bool, Option<Duration>),
) -> Option<RouteView> {
    let workers = replica.mind.lock();
    let worker = workers.worker(decision.place.worker()).cloned();
    drop(workers);
    let entry = replica.ledger.get(decision.id)?;
    let send = worker.as_ref().map(|worker| {
        let rank = decision.target().map(|it| it.dp_rank);
        let conversation = intake.lasting_id();
        let salt = intake.salt.as_deref();
        SendView::of(worker, intake.endpoint, rank, conversation.as_ref(), salt)
    });
    Some(RouteView {
        decision: DecisionView::of(&entry, worker.map(|it| it.url)),
        send,
        would_wait,
        lease_seconds: lease.map(|it| it.as_secs()),
    })
}
