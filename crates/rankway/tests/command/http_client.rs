//! A client of whatever speaks HTTP.

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::timeout;

use crate::process::PATIENCE;

#[derive(Clone)]
pub(crate) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
}

/// An answer read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Client {
    pub(crate) fn new() -> Self {
        let pool = Pool::builder(TokioExecutor::new()).build_http();
        Self { pool }
    }

    /// Nothing when whoever should answer goes away before the end of the answer.
    pub(crate) async fn try_post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Option<Answer> {
        let mut request = Request::post(url).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_string())).unwrap();
        self.exchange(request).await
    }

    pub(crate) async fn post(&self, url: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let answer = self.try_post(url, headers, body).await;
        answer.unwrap_or_else(|| panic!("{url} does not answer"))
    }

    pub(crate) async fn try_get(&self, url: &str) -> Option<Answer> {
        self.exchange(Request::get(url).body(Full::default()).unwrap())
            .await
    }

    pub(crate) async fn get(&self, url: &str) -> Answer {
        let answer = self.try_get(url).await;
        answer.unwrap_or_else(|| panic!("{url} does not answer"))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Option<Answer> {
        let url = request.uri().to_string();
        let exchanged = timeout(PATIENCE, async {
            let (head, body) = self.pool.request(request).await.ok()?.into_parts();
            Some(Answer {
                status: head.status,
                headers: head.headers,
                body: body.collect().await.ok()?.to_bytes(),
            })
        });
        exchanged
            .await
            .unwrap_or_else(|_| panic!("{url} leaves its client waiting"))
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|it| it.to_str().unwrap())
    }
}
