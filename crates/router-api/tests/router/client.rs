//! A client of the router.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    pool: Pool<HttpConnector, Full<Bytes>>,
}

/// An answer read whole.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let pool = Pool::builder(TokioExecutor::new()).build_http();
        Self { address, pool }
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn open(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> http::Response<Incoming> {
        let mut request = Request::post(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let request = request.header("content-type", "application/json");
        let request = request.body(body).unwrap();
        crate::soon(self.pool.request(request)).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        Answer::read(self.open(path, headers, body).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let uri = format!("http://{}{path}", self.address).parse().unwrap();
        let response = crate::soon(self.pool.get(uri)).await.unwrap();
        Answer::read(response).await
    }
}

impl Answer {
    async fn read(response: http::Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = crate::soon(body.collect()).await.unwrap().to_bytes();
        Self {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|it| it.to_str().unwrap())
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }
}

/// The next chunk of a streamed body.
pub(crate) async fn chunk(body: &mut Incoming) -> Option<Bytes> {
    let frame = crate::soon(body.frame()).await?;
    Some(frame.unwrap().into_data().unwrap())
}
