//! A running fake engine and an HTTP client for it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use domain::RankEndpoint;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use service_kit::CancellationToken;
use tokio::task::JoinSet;

use crate::{Config, EngineSim};

/// How long anything may take that must happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A configuration on free ports, fast enough to test with.
pub(super) fn config() -> Config {
    Config {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        dp_size: 2,
        kv_blocks: 256,
        speed_up: 50.0,
        kv_events_port: Some(0),
        replay_port: Some(0),
        ..Config::default()
    }
}

pub(super) struct Sim {
    pub(super) address: SocketAddr,
    pub(super) endpoints: Vec<RankEndpoint>,
    client: HttpClient<HttpConnector, Body>,
    shutdown: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Sim {
    pub(super) async fn start(config: Config) -> Self {
        let sim = EngineSim::bind(config).await.unwrap();
        let (address, endpoints) = (sim.http_addr(), sim.kv_endpoints().to_vec());
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(sim.run(shutdown.clone()));
        Self {
            address,
            endpoints,
            client: HttpClient::builder(TokioExecutor::new()).build_http(),
            shutdown,
            tasks,
        }
    }

    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.tasks.join_next()).await;
        ended.unwrap().unwrap().unwrap().unwrap();
    }

    pub(super) async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> Response<hyper::body::Incoming> {
        let mut request = Request::builder().uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = match body {
            Some(body) => request.method("POST").body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        self.client.request(request.unwrap()).await.unwrap()
    }

    pub(super) async fn text(&self, path: &str) -> String {
        let body = self.send(path, &[], None).await.into_body();
        let bytes = body.collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await).unwrap()
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.post_with(path, &[], body).await
    }

    pub(super) async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> (StatusCode, Value) {
        let response = self.send(path, headers, Some(body)).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    /// A chat on a rank: the answer, and the cached tokens it reports.
    pub(super) async fn chat(&self, rank: &str, messages: &Value, tokens: u32) -> (Value, u64) {
        let body =
            serde_json::json!({"messages": messages, "max_tokens": tokens, "ignore_eos": true});
        let headers = [("X-data-parallel-rank", rank)];
        let (status, answer) = self.post_with("/v1/chat/completions", &headers, body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        (
            answer["choices"][0]["message"].clone(),
            cached.as_u64().unwrap(),
        )
    }

    /// The data of all frames of a stream, the last of them `[DONE]` and left out.
    pub(super) async fn stream(&self, path: &str, body: Value) -> (HeaderMap, Vec<Value>) {
        let response = self.send(path, &[], Some(body)).await;
        let headers = response.headers().clone();
        let bytes: Bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let mut frames: Vec<_> = text
            .split_terminator("\n\n")
            .map(|it| it.strip_prefix("data: ").unwrap())
            .collect();
        assert_eq!(frames.pop(), Some("[DONE]"));
        let frames = frames.iter().map(|it| serde_json::from_str(it).unwrap());
        (headers, frames.collect())
    }
}

/// A text of `words` words that no other `topic` shares.
pub(super) fn words(topic: &str, words: usize) -> String {
    (0..words).map(|at| format!("{topic}{at} ")).collect()
}
