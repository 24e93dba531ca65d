//! Asking a running process over HTTP.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cli::AdminArgs;

/// The longest answer read, in bytes: the blocks of a large engine, listed.
const MAX_ANSWER: usize = 256 << 20;

/// An HTTP client for small JSON answers.
#[derive(Clone)]
pub(crate) struct JsonClient {
    client: Client<HttpConnector, Full<Bytes>>,
    token: Option<String>,
    /// What to do when nobody answers.
    advice: &'static str,
}

/// The error of Rankway's API, as far as it is shown.
#[derive(Deserialize)]
struct Refusal {
    error: Refused,
}

#[derive(Deserialize)]
struct Refused {
    message: String,
}

impl JsonClient {
    fn new(token: Option<String>, advice: &'static str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            token,
            advice,
        }
    }

    /// A client of engines.
    pub(crate) fn of_engines() -> Self {
        Self::new(None, "is the engine running?")
    }

    /// A client of the admin API.
    pub(crate) fn of_admin(args: &AdminArgs) -> Self {
        let advice = "start `rankway up`, or correct --admin-url";
        Self::new(args.admin_token.clone(), advice)
    }

    /// Asks and reads the answer as JSON; a status other than 200 is an error that quotes the answer.
    pub(crate) async fn get<T: DeserializeOwned>(&self, url: &str) -> anyhow::Result<T> {
        let body = self.fetch(url, "application/json").await?;
        serde_json::from_slice(&body).with_context(|| format!("understand the answer of {url}"))
    }

    /// Asks and reads the answer as text.
    pub(crate) async fn get_text(&self, url: &str) -> anyhow::Result<String> {
        let body = self.fetch(url, "text/plain").await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    async fn fetch(&self, url: &str, accept: &str) -> anyhow::Result<Bytes> {
        let mut request = Request::builder().method(Method::GET).uri(url);
        request = request.header(header::ACCEPT, accept);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Full::default())
            .with_context(|| format!("{url:?} is no URL: write http://host:port"))?;
        let response = self.client.request(request).await;
        let response =
            response.with_context(|| format!("nobody answers at {url}: {}", self.advice))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await;
        let body = body
            .map_err(|error| anyhow::anyhow!("read the answer of {url}: {error}"))?
            .to_bytes();
        if status == StatusCode::UNAUTHORIZED {
            bail!("{url} asks for the admin token: give --admin-token");
        }
        if status != StatusCode::OK {
            let answer = match serde_json::from_slice::<Refusal>(&body) {
                Ok(refusal) => refusal.error.message,
                Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
            };
            bail!("{url} answered {status}: {answer}");
        }
        Ok(body)
    }
}
