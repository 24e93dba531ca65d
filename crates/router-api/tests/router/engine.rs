//! An engine whose every answer a test decides.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// A listening engine of two ranks and blocks of four tokens; it stops when dropped.
pub(crate) struct Engine {
    pub(crate) url: String,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    tokenizer: Arc<Mutex<Option<Vec<u32>>>>,
    waiting: Arc<AtomicU32>,
    _server: JoinSet<()>,
}

/// A request that waits for its answer.
pub(crate) struct Arrival {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    answer: oneshot::Sender<Response>,
}

/// An answer under way, chunk by chunk.
pub(crate) struct Stream(mpsc::Sender<io::Result<Bytes>>);

const PROPS: &str = r#"{"total_slots":2,"default_generation_settings":{"n_ctx":4096},"build_info":"b20000-0fd7ca7"}"#;
const SLOTS: &str =
    r#"[{"id":0,"n_ctx":4096,"is_processing":false},{"id":1,"n_ctx":4096,"is_processing":false}]"#;

#[derive(Clone)]
struct Shared {
    arrivals: mpsc::UnboundedSender<Arrival>,
    tokenizer: Arc<Mutex<Option<Vec<u32>>>>,
}

const VLLM_MODELS: &str = r#"{"data":[{"id":"m"}]}"#;
const TENSORRT_LLM_MODELS: &str = r#"{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}"#;

/// What a TensorRT-LLM that keeps conversations says of itself.
fn worker_info(rank_source: &str, first_rank_recorded: &str) -> String {
    format!(
        r#"{{"engine":"tensorrt-llm","version":"1.3.0","dp_size":2,"tokens_per_block":4,"kv_blocks":2000,
        "kv_events":false,"conversation_affinity":true,"rank_source":"{rank_source}",
        "first_rank_recorded":{first_rank_recorded}}}"#
    )
}

impl Engine {
    pub(crate) async fn start() -> Self {
        Self::serving(models(VLLM_MODELS)).await
    }

    /// A TensorRT-LLM that keeps conversations on ranks which it chooses.
    pub(crate) async fn tensorrt_llm() -> Self {
        Self::keeping_conversations(worker_info("engine", "null")).await
    }

    /// A TensorRT-LLM that keeps each conversation on the rank that its first turn asked for.
    pub(crate) async fn tensorrt_llm_that_keeps_first_ranks() -> Self {
        Self::keeping_conversations(worker_info("router", "true")).await
    }

    async fn keeping_conversations(info: String) -> Self {
        let info = get(|| async { info });
        let own = models(TENSORRT_LLM_MODELS).route("/worker_info", info);
        Self::serving(own).await
    }

    /// A llama.cpp of two slots of 4,096 tokens.
    pub(crate) async fn llama_cpp() -> Self {
        let own = models(VLLM_MODELS)
            .route("/props", get(|| async { PROPS }))
            .route("/slots", get(|| async { SLOTS }))
            .route(
                "/apply-template",
                post(|| async { r#"{"prompt":"a text"}"# }),
            );
        Self::serving(own).await
    }

    async fn serving(own: Router<Shared>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        // Bounded by what the test sends.
        let (sender, arrivals) = mpsc::unbounded_channel();
        let tokenizer = Arc::default();
        let waiting = Arc::new(AtomicU32::new(0));
        let said = waiting.clone();
        let shared = Shared {
            arrivals: sender,
            tokenizer: Arc::clone(&tokenizer),
        };
        let routes = own
            .route("/health", get(|| async {}))
            .route(
                "/metrics",
                get(move || async move { metrics(said.load(Ordering::Relaxed)) }),
            )
            .route("/tokenize", post(tokenize))
            .route("/v1/{*path}", post(arrive))
            .with_state(shared);
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self {
            url,
            arrivals,
            tokenizer,
            waiting,
            _server: server,
        }
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> Arrival {
        crate::soon(self.arrivals.recv()).await.unwrap()
    }

    /// From now on its gauges say that so many requests wait at each rank.
    pub(crate) fn say_waiting(&self, requests: u32) {
        self.waiting.store(requests, Ordering::Relaxed);
    }

    /// What every text is tokenised to; none fails.
    pub(crate) fn tokenise_to(&self, tokens: Option<Vec<u32>>) {
        *self.tokenizer.lock().unwrap() = tokens;
    }
}

impl Arrival {
    /// The rank that was asked for.
    pub(crate) fn rank(&self) -> Option<&str> {
        let rank = self.headers.get("x-data-parallel-rank");
        rank.map(|it| it.to_str().unwrap())
    }

    /// Answers in one piece.
    pub(crate) fn answer(self, status: u16, body: impl Into<String>) {
        self.answer_with(status, ("content-type", "application/json"), body);
    }

    /// Answers in one piece, with one more header.
    pub(crate) fn answer_with(
        self,
        status: u16,
        (name, value): (&'static str, &str),
        body: impl Into<String>,
    ) {
        let json = [("content-type", "application/json")];
        let status = StatusCode::from_u16(status).unwrap();
        let mut response = (status, json, body.into()).into_response();
        response.headers_mut().insert(name, value.parse().unwrap());
        self.answer.send(response).unwrap();
    }

    /// Answers with a stream of events.
    pub(crate) fn stream(self) -> Stream {
        let (sender, chunks) = mpsc::channel(1);
        let chunks = futures::stream::unfold(chunks, |mut chunks| async move {
            let chunk = chunks.recv().await?;
            Some((chunk, chunks))
        });
        let events = [("content-type", "text/event-stream")];
        let response = (events, Body::from_stream(chunks)).into_response();
        self.answer.send(response).unwrap();
        Stream(sender)
    }

    /// Resolves when the router has given the request up.
    pub(crate) async fn abandoned(mut self) {
        crate::soon(self.answer.closed()).await;
    }
}

impl Stream {
    pub(crate) async fn send(&self, chunk: &str) {
        let chunk = Bytes::copy_from_slice(chunk.as_bytes());
        crate::soon(self.0.send(Ok(chunk))).await.unwrap();
    }

    /// Breaks off, as an engine that dies.
    pub(crate) async fn break_off(self) {
        let broken = Err(io::Error::other("dead"));
        crate::soon(self.0.send(broken)).await.unwrap();
    }

    /// Resolves when the router has given the answer up.
    pub(crate) async fn abandoned(self) {
        crate::soon(self.0.closed()).await;
    }
}

fn models(listed: &'static str) -> Router<Shared> {
    Router::new().route("/v1/models", get(move || async move { listed }))
}

async fn arrive(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (answer, answered) = oneshot::channel();
    let arrival = Arrival {
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: to_bytes(body, usize::MAX).await.unwrap(),
        answer,
    };
    shared.arrivals.send(arrival).unwrap();
    match answered.await {
        Ok(response) => response,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn tokenize(State(shared): State<Shared>) -> Response {
    match shared.tokenizer.lock().unwrap().as_ref() {
        Some(tokens) => {
            format!(r#"{{"count":{},"tokens":{tokens:?}}}"#, tokens.len()).into_response()
        }
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn metrics(waiting: u32) -> String {
    let rank = |rank: u32| {
        format!(
            "vllm:num_requests_running{{engine=\"{rank}\"}} 0.0\n\
             vllm:num_requests_waiting{{engine=\"{rank}\"}} {waiting}.0\n\
             vllm:kv_cache_usage_perc{{engine=\"{rank}\"}} 0.0\n\
             vllm:cache_config_info{{block_size=\"4\",engine=\"{rank}\",num_gpu_blocks=\"2000\"}} 1.0\n"
        )
    };
    format!("{}{}", rank(0), rank(1))
}
