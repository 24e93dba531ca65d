//! An engine that says of itself whatever a test wants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use worker_adapter::{EngineUrl, WorkerConfig};

/// Answers by path; what is not there is a 404.
type Answers = Arc<Mutex<BTreeMap<&'static str, (u16, String)>>>;

/// A listening stub; it stops when dropped.
pub(crate) struct Stub {
    pub(crate) url: EngineUrl,
    answers: Answers,
    server: JoinSet<()>,
}

impl Stub {
    /// A healthy vLLM with `dp_size` ranks from `start_rank` on that lists its event sources.
    pub(crate) async fn start(start_rank: u32, dp_size: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = Answers::default();
        let routes = Router::new().fallback(answer).with_state(answers.clone());
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        let stub = Self {
            url: url.parse().unwrap(),
            answers,
            server,
        };
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
        self.answers.lock().unwrap().insert(path, answer);
    }

    pub(crate) fn forget(&self, path: &'static str) {
        self.answers.lock().unwrap().remove(path);
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

async fn answer(State(answers): State<Answers>, uri: Uri) -> (StatusCode, String) {
    match answers.lock().unwrap().get(uri.path()) {
        Some((status, body)) => (StatusCode::from_u16(*status).unwrap(), body.clone()),
        None => (StatusCode::NOT_FOUND, String::new()),
    }
}
