//! `POST /v1/route`: a decision without a dispatch, for people who dispatch themselves.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use contracts::rpc::CallEnd;
use domain::ModelName;
use http::HeaderMap;
use routing::Status;

use crate::error::ApiError;
use crate::intake::{Intake, TokenSource};
use crate::openai::Fields;
use crate::place::Placing;
use crate::replica::Replica;
use crate::view::DecisionView;

/// Answers where a request would go. With `"commit": true` the conversation is bound there and the choice
/// stands; the reservation ends at once either way, because nothing tells when its prefill is done.
pub(crate) async fn route(State(replica): State<Arc<Replica>>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let mut model = None;
    let routed = serve(&replica, &parts.headers, body, &mut model).await;
    let response = routed.unwrap_or_else(IntoResponse::into_response);
    replica.count(model.as_ref(), response.status());
    response
}

async fn serve(
    replica: &Arc<Replica>,
    headers: &HeaderMap,
    body: Body,
    model: &mut Option<ModelName>,
) -> Result<Response, ApiError> {
    let limit = replica.config.max_body;
    let held = replica.bodies.read(headers, body, limit).await?;
    let fields = Fields::read(&held.bytes)?;
    let mut intake = Intake::read(replica, headers, fields.endpoint(), &fields)?;
    *model = Some(intake.model.clone());
    let source = TokenSource::of(replica, &intake, fields.asked()?)?;
    let authorization = headers.get(http::header::AUTHORIZATION);
    let blocks = replica
        .blocks(source, &intake, &fields, &held.bytes, authorization)
        .await;
    let commit = fields.commit == Some(true);
    replica.identify(&mut intake, &blocks, commit);
    let mut placing = Placing {
        replica,
        intake: &intake,
        blocks: &blocks,
        known: replica.ask(&intake, &blocks, commit).await,
        tried: Vec::new(),
        retry_of: None,
    };
    let decision = match commit {
        false => placing.preview()?,
        true => {
            let mut turn = placing.place().await?;
            turn.first_chunk();
            turn.end(Status::Served, &CallEnd::default());
            turn.decision.clone()
        }
    };
    let workers = replica.mind.lock();
    let url = workers
        .worker(decision.place.worker())
        .map(|it| it.url.clone());
    drop(workers);
    let entry = replica.ledger.get(decision.id);
    let view = entry.map(|entry| DecisionView::of(&entry, url));
    Ok(Json(view).into_response())
}
