//! Plain HTTP/1.1 to engines: pooled connections, no buffering, no TLS.

use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use crate::address::EngineUrl;

/// A peer that does not complete a TCP handshake in this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// vLLM closes idle connections after 5 s: leave before it does, so that no request meets a closing one.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Idle connections kept per engine; beyond it they are closed after use.
const POOL_SIZE: usize = 256;
/// A silent peer is probed after this time, so that a stream from a lost host breaks.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// How long an engine may take to answer a question about itself.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer to such a question: vLLM's `/metrics` is about 100 KiB for 8 ranks.
const ASK_LIMIT: usize = 16 << 20;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A pool of connections to engines. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct EngineClient {
    pool: Client<HttpConnector, Full<Bytes>>,
}

/// An answer to a question about the engine.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl EngineClient {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_keepalive(Some(TCP_KEEPALIVE));
        connector.set_keepalive_interval(Some(TCP_KEEPALIVE));
        let pool = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_SIZE)
            .build(connector);
        Self { pool }
    }

    /// Sends one request. Dropping the future, or later the body, closes its connection.
    pub(crate) async fn send(
        &self,
        engine: &EngineUrl,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, BoxError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{engine}{path}").parse()?;
        *request.headers_mut() = headers;
        Ok(self.pool.request(request).await?)
    }

    /// Asks the engine about itself and reads the whole answer.
    pub(crate) async fn ask(&self, engine: &EngineUrl, path: &str) -> Result<Answer, BoxError> {
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        let asked = self.exchange(engine, Method::GET, path, headers, body);
        timeout(ASK_TIMEOUT, asked)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", ASK_TIMEOUT.as_secs()).into()))
    }

    /// Sends one request and reads the whole answer, however long that takes.
    pub(crate) async fn exchange(
        &self,
        engine: &EngineUrl,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answer, BoxError> {
        let response = self.send(engine, method, path, headers, body).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ASK_LIMIT);
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status, body })
    }
}
