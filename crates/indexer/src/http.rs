//! The index over HTTP, in the shape that other indexers have: that of Mooncake's request for comments 1403, as
//! Dynamo's indexer answers it. All counts are tokens, so that workers with different block sizes compare.
//!
//! What differs: `frequencies` is always empty; the index of a LoRA and of a salt is chosen by naming them, also
//! where hashes are given; and `coverage` says what the answer knows nothing of.

mod answer;
mod asked;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use contracts::rpc::{CallError, Index as _, OverlapRequest, PrefixHashes};
use domain::Worker;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::answer::Answer;
use self::asked::{Asked, ByHashes, ByTokens};
use crate::answers::Answers;

/// The longest body: two million token ids as text.
const BODY_LIMIT: usize = 16 << 20;
/// Queries at once; their bodies and what is made of them stay below 2 GiB.
const MAX_QUERIES: usize = 64;
/// How long a body may take to come.
const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// Seconds after which one that was turned away may ask again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");
/// The only group there is; others keep one index for each.
const GROUP: &str = "default";

#[derive(Clone)]
struct Shared {
    answers: Arc<Answers>,
    /// One permit for each query.
    room: Arc<Semaphore>,
}

/// `POST /query` and `/query_by_hash`, `GET /workers` and `/health`.
pub(crate) fn routes(answers: Arc<Answers>) -> Router {
    let shared = Shared {
        answers,
        room: Arc::new(Semaphore::new(MAX_QUERIES)),
    };
    Router::new()
        .route("/query", post(query::<ByTokens>))
        .route("/query_by_hash", post(query::<ByHashes>))
        .route("/workers", get(workers))
        .route("/health", get(|| async { StatusCode::OK }))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(shared)
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Wrong(String),
    #[error("a body has at most {BODY_LIMIT} bytes")]
    TooLong,
    #[error("the body did not come within {BODY_PATIENCE:?}")]
    Late,
    #[error("no worker serves model {name:?}; there is {known}")]
    UnknownModel { name: String, known: String },
    #[error("there is no routing group {0:?}, only {GROUP:?}")]
    UnknownGroup(String),
    #[error("{MAX_QUERIES} queries are being answered already")]
    Busy,
    #[error(transparent)]
    Call(#[from] CallError),
}

async fn query<A: Asked>(State(shared): State<Shared>, request: Request) -> Response {
    match answer::<A>(&shared, request).await {
        Ok(answer) => Json(answer).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn answer<A: Asked>(shared: &Shared, request: Request) -> Result<Answer, Refusal> {
    let _permit = shared.room.try_acquire().map_err(|_| Refusal::Busy)?;
    let body = timeout(BODY_PATIENCE, Bytes::from_request(request, &()));
    let body = body.await.map_err(|_| Refusal::Late)?.map_err(unread)?;
    // Of a long prompt that takes many milliseconds, in which nobody else is to wait.
    let answers = shared.answers.clone();
    let prepared = spawn_blocking(move || prepare::<A>(&answers, &body)).await;
    let (workers, requests) = prepared.map_err(|error| CallError::Unavailable {
        service: "indexer",
        why: format!("the query broke off: {error}"),
    })??;
    let mut answer = Answer::new(&shared.answers, &workers);
    for request in requests {
        let block_size = request.namespace.block_size;
        answer.add(block_size, shared.answers.overlap(request).await?);
    }
    answer.settle();
    Ok(answer)
}

/// The workers that a query is about, and what it asks the index in each of their block sizes.
fn prepare<A: Asked>(
    answers: &Answers,
    body: &[u8],
) -> Result<(Vec<Worker>, Vec<OverlapRequest>), Refusal> {
    let asked: A = serde_json::from_slice(body)
        .map_err(|error| Refusal::Wrong(format!("read the query: {error}")))?;
    // The fleet is read before the log is.
    answers.level_reader()?;
    let about = asked.about();
    about.check()?;
    let workers = serving(answers, &about.model_name)?;
    let request = |(block_size, hashes)| OverlapRequest {
        namespace: about.namespace(&workers, block_size),
        hashes: PrefixHashes::Dense(hashes),
        record: false,
    };
    let requests = asked.hashes(&workers)?.into_iter().map(request).collect();
    Ok((workers, requests))
}

fn serving(answers: &Answers, name: &str) -> Result<Vec<Worker>, Refusal> {
    let serving = answers.members.of_model(name, answers.clock.now());
    serving.map_err(|models| {
        let models: Vec<&str> = models.iter().map(|it| it.as_str()).collect();
        Refusal::UnknownModel {
            name: name.chars().take(100).collect(),
            known: match models.is_empty() {
                true => "no worker at all".to_owned(),
                false => models.join(", "),
            },
        }
    })
}

fn unread(rejection: BytesRejection) -> Refusal {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refusal::TooLong,
        _ => Refusal::Wrong(rejection.body_text()),
    }
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Wrong(_) | Self::Call(CallError::InvalidArgument { .. }) => {
                StatusCode::BAD_REQUEST
            }
            Self::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::UnknownModel { .. } | Self::UnknownGroup(_) => StatusCode::NOT_FOUND,
            Self::Busy | Self::Call(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body {
            error: String,
        }
        let status = self.status();
        let body = Body {
            error: self.to_string(),
        };
        let mut response = (status, Json(body)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

/// What every query names.
#[derive(Debug, Deserialize)]
struct About {
    model_name: String,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    routing_group: Option<String>,
}

/// A registered worker whose lease has not ended.
#[derive(Serialize)]
struct Member {
    instance_id: String,
    model_name: String,
    routing_group: &'static str,
    block_size: u32,
    epoch: u64,
    dp_ranks: Vec<u32>,
    state: &'static str,
    url: String,
}

async fn workers(State(shared): State<Shared>) -> Json<Vec<Member>> {
    let answers = &shared.answers;
    let members = answers.members.live(answers.clock.now()).into_iter();
    let member = |it: Worker| Member {
        instance_id: it.id.to_string(),
        model_name: it.model.to_string(),
        routing_group: GROUP,
        block_size: it.block_size.get(),
        epoch: it.epoch.get(),
        dp_ranks: it.ranks().map(|rank| rank.get()).collect(),
        state: it.state.name(),
        url: it.url,
    };
    Json(members.map(member).collect())
}
