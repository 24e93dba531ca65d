//! A request for tokens, from its bytes to the engine's answer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use contracts::rpc::CallHead;
use domain::{ConversationId, Endpoint, ModelName};
use http::HeaderMap;
use routing::Status;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::chain::Chain;
use crate::error::ApiError;
use crate::intake::{Blocks, Intake, TokenSource, passing};
use crate::openai::{Fields, edit, without_ranks};
use crate::place::Placing;
use crate::reach::Reach;
use crate::replica::Replica;
use crate::reply::{Answer, Reply};
use crate::tenant::Tenant;
use crate::turn::Turn;

/// Targets that one request is tried at before its client is told.
const MAX_ATTEMPTS: u32 = 3;
/// A longer body is not kept once it is sent, and so not sent again.
const RETRIED_BODY_LIMIT: usize = 8 << 20;

/// Serves a request to an engine's path of the same name.
pub(crate) async fn infer(
    endpoint: Endpoint,
    Caller(tenant): Caller,
    State(replica): State<Arc<Replica>>,
    request: Request<Body>,
) -> Response {
    let (parts, body) = request.into_parts();
    let whole = parts.uri.path_and_query().map_or("/", |it| it.as_str());
    // No endpoint served here takes a query; where keys are set one may hold a key, however it is spelt.
    let path = match tenant.is_named() {
        true => parts.uri.path(),
        false => whole,
    };
    let path = path.to_owned();
    let mut model = None;
    let target = (endpoint, path);
    let asker = (&tenant, &parts.headers);
    let served = serve(&replica, asker, target, body, &mut model).await;
    let response = served.unwrap_or_else(IntoResponse::into_response);
    replica.count(model.as_ref(), response.status());
    response
}

async fn serve(
    replica: &Arc<Replica>,
    (tenant, headers): (&Arc<Tenant>, &HeaderMap),
    (endpoint, path): (Endpoint, String),
    body: Body,
    model: &mut Option<ModelName>,
) -> Result<Response, ApiError> {
    replica.knows_workers().await;
    let held = replica
        .bodies
        .read(headers, body, replica.config.max_body)
        .await?;
    let received = Instant::now();
    let asked = Fields::read(&held.bytes)?;
    let mut intake = Intake::read(replica, (tenant, headers), endpoint, &asked)?;
    *model = Some(intake.model.clone());
    replica.goes_on(&mut intake, &asked).await?;
    let body = without_ranks(&held.bytes, &asked, replica.config.allow_client_target);
    let fields = Fields::read(&body)?;
    let source = TokenSource::of(replica, &intake, fields.prompt(endpoint)?)?;
    let authorization = headers.get(http::header::AUTHORIZATION);
    let blocks = replica
        .blocks(source, &intake, &fields, &body, authorization)
        .await;
    let edited = edit(
        &body,
        &fields,
        injects_usage(replica, endpoint),
        intake.made_salt(),
    );
    replica.identify(&mut intake, &blocks, true);
    let call = Call {
        path,
        conversation: intake.lasting_id(),
        headers: passing(headers),
        usage_injected: edited.usage_injected,
        received,
    };
    let (turn, reply) = send(replica, &intake, &blocks, &call, edited.body).await?;
    let chain = Chain::of(replica, &intake);
    Ok(reply.into_response(turn, chain, replica.config.expose_decision))
}

/// Whether a stream is asked for its usage: the other endpoints' streams tell it, or have other options under the
/// same name.
fn injects_usage(replica: &Replica, endpoint: Endpoint) -> bool {
    replica.config.usage_injection
        && match endpoint {
            Endpoint::Chat | Endpoint::Completions => true,
            Endpoint::Responses | Endpoint::Messages | Endpoint::Embeddings => false,
        }
}

/// What every attempt at a request has in common.
struct Call {
    path: String,
    conversation: Option<ConversationId>,
    headers: Vec<(String, String)>,
    usage_injected: bool,
    received: Instant,
}

/// Tries targets until one has a first byte.
async fn send(
    replica: &Arc<Replica>,
    intake: &Intake,
    blocks: &Blocks,
    call: &Call,
    body: Bytes,
) -> Result<(Turn, Reply), ApiError> {
    let attempts = match RETRIED_BODY_LIMIT < body.len() {
        true => 1,
        false => MAX_ATTEMPTS,
    };
    let mut placing = Placing::admitted(replica, intake, blocks).await?;
    let mut reach = Reach::default();
    let mut tried = 0;
    let mut last_failure = None;
    while tried < attempts {
        let mut turn = match placing.place().await {
            Ok(turn) => turn,
            Err(error) => match reach.wait().await {
                true => {
                    placing.no_adapter.clear();
                    continue;
                }
                false => return Err(last_failure.unwrap_or(error)),
            },
        };
        turn.dispatched(call.received, placing.tail(&turn.decision));
        let body = intake.body_for(replica, turn.decision.place.worker(), &body);
        let sent = (call.head(&turn), body);
        let answer = reach.call(replica, &mut turn, sent, 1 < attempts).await;
        match answer {
            Answer::Passing(reply) => return Ok((turn, reply)),
            Answer::Failed { status, why } => {
                if attempts == 1 {
                    let why = format!("{why}; a body of more than 8 MiB is sent only once");
                    return Err(failure(1, status, why, &reach));
                }
                tried += u32::from(status != Status::NoAdapter);
                last_failure = Some(failure(tried, status, why, &reach));
                reach.look_elsewhere();
                placing.failed(turn, status).await;
            }
        }
    }
    Err(last_failure.expect("the last attempt has failed"))
}

fn failure(attempts: u32, status: Status, why: String, reach: &Reach) -> ApiError {
    match status {
        Status::NoAdapter => reach.error(&why),
        _ => ApiError::Upstream { attempts, why },
    }
}

impl Call {
    fn head(&self, turn: &Turn) -> CallHead {
        let place = &turn.decision.place;
        CallHead {
            worker: place.worker().clone(),
            dp_rank: place.target().map(|it| it.dp_rank),
            conversation: self.conversation.clone(),
            method: "POST".to_owned(),
            path: self.path.clone(),
            headers: self.headers.clone(),
            usage_injected: self.usage_injected,
        }
    }
}
