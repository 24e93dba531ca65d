//! An engine that says of itself whatever a test wants.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::stream;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use worker_adapter::{EngineUrl, WorkerConfig};

use crate::running::DEADLINE;

/// Answers by path; what is not there is a 404.
type Answers = Arc<Mutex<BTreeMap<&'static str, (u16, String)>>>;

/// Answered with the head of an event stream at once, and with a body as the test sends it.
pub(crate) const STREAM: &str = "/stream";
/// Never answered.
pub(crate) const NEVER: &str = "/never";
/// More than any test sends.
const CHUNKS: usize = 8;

/// What the engine's side shares with the test.
#[derive(Clone)]
struct Engine {
    answers: Answers,
    /// Whether it has stopped answering anything.
    frozen: watch::Sender<bool>,
    chunks: broadcast::Sender<&'static str>,
    /// How many calls of [`STREAM`] and [`NEVER`] are waiting.
    calls: watch::Sender<usize>,
}

/// A listening stub; it stops when dropped.
pub(crate) struct Stub {
    pub(crate) url: EngineUrl,
    engine: Engine,
    server: JoinSet<()>,
}

impl Stub {
    /// An engine that answers nothing but 404 yet.
    pub(crate) async fn silent() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let engine = Engine {
            answers: Answers::default(),
            frozen: watch::Sender::new(false),
            chunks: broadcast::Sender::new(CHUNKS),
            calls: watch::Sender::new(0),
        };
        let routes = Router::new().fallback(answer).with_state(engine.clone());
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self {
            url: url.parse().unwrap(),
            engine,
            server,
        }
    }

    /// A healthy vLLM with `dp_size` ranks from `start_rank` on that lists its event sources.
    pub(crate) async fn start(start_rank: u32, dp_size: u32) -> Self {
        let stub = Self::silent().await;
        let ranks = start_rank..start_rank + dp_size;
        stub.set("/health", 200, "");
        stub.set(
            "/v1/models",
            200,
            r#"{"object":"list","data":[{"id":"m"}]}"#,
        );
        stub.set("/version", 200, r#"{"version":"0.33.0"}"#);
        let sources: Vec<String> = ranks
            .clone()
            .map(|rank| {
                let (events, replay) = (5557 + rank, 5657 + rank);
                format!(
                    r#""{rank}":{{"publisher":"zmq","endpoint":"tcp://*:{events}","replay_endpoint":"tcp://*:{replay}","topic":"kv"}}"#
                )
            })
            .collect();
        stub.set(
            "/kv_event_sources",
            200,
            &format!("{{{}}}", sources.join(",")),
        );
        let metrics: String = ranks
            .map(|rank| {
                format!(
                    "vllm:num_requests_running{{engine=\"{rank}\"}} 3.0\n\
                     vllm:num_requests_waiting{{engine=\"{rank}\"}} 1.0\n\
                     vllm:kv_cache_usage_perc{{engine=\"{rank}\"}} 0.25\n\
                     vllm:cache_config_info{{block_size=\"16\",engine=\"{rank}\",num_gpu_blocks=\"102\"}} 1.0\n"
                )
            })
            .collect();
        stub.set("/metrics", 200, &metrics);
        stub
    }

    pub(crate) fn set(&self, path: &'static str, status: u16, body: &str) {
        let answer = (status, body.to_owned());
        self.engine.answers.lock().unwrap().insert(path, answer);
    }

    pub(crate) fn forget(&self, path: &'static str) {
        self.engine.answers.lock().unwrap().remove(path);
    }

    /// From now on connections are accepted and nothing is answered.
    pub(crate) fn freeze(&self) {
        self.engine.frozen.send_replace(true);
    }

    /// Sends one more piece of every [`STREAM`].
    pub(crate) fn send(&self, chunk: &'static str) {
        self.engine.chunks.send(chunk).unwrap();
    }

    /// Waits until the engine has `count` calls of [`STREAM`] and [`NEVER`].
    pub(crate) async fn until_calls(&self, count: usize) {
        let mut calls = self.engine.calls.subscribe();
        let reached = calls.wait_for(|calls| *calls == count);
        timeout(DEADLINE, reached).await.unwrap().unwrap();
    }

    pub(crate) fn config(&self) -> WorkerConfig {
        WorkerConfig {
            id: Some("w1".parse().unwrap()),
            ..WorkerConfig::at(self.url.clone())
        }
    }

    pub(crate) async fn stop(mut self) {
        self.server.shutdown().await;
    }
}

/// Counts a call for as long as the engine has it.
struct Waiting(watch::Sender<usize>);

impl Waiting {
    fn start(calls: &watch::Sender<usize>) -> Self {
        calls.send_modify(|count| *count += 1);
        Self(calls.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

async fn answer(State(engine): State<Engine>, uri: Uri) -> Response {
    if *engine.frozen.borrow() {
        pending::<()>().await;
    }
    match uri.path() {
        NEVER => {
            let _waiting = Waiting::start(&engine.calls);
            pending().await
        }
        STREAM => {
            let chunks = engine.chunks.subscribe();
            let waiting = Waiting::start(&engine.calls);
            let body = stream::unfold((chunks, waiting), async |(mut chunks, waiting)| {
                let chunk = chunks.recv().await.ok()?;
                Some((Ok::<_, Infallible>(chunk), (chunks, waiting)))
            });
            let head = [(CONTENT_TYPE, "text/event-stream")];
            (head, Body::from_stream(body)).into_response()
        }
        path => match engine.answers.lock().unwrap().get(path) {
            Some((status, body)) => {
                (StatusCode::from_u16(*status).unwrap(), body.clone()).into_response()
            }
            None => StatusCode::NOT_FOUND.into_response(),
        },
    }
}
