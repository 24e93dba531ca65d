//! Asking a running process over HTTP.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cli::AdminArgs;

/// The longest answer read, in bytes: the blocks of a large engine, listed.
const MAX_ANSWER: usize = 256 << 20;

/// An HTTP client for small JSON answers.
#[derive(Clone)]
pub(crate) struct JsonClient {
    client: Client<HttpConnector, Full<Bytes>>,
    token: Option<String>,
    peer: Peer,
}

/// Who is asked.
#[derive(Clone, Copy)]
enum Peer {
    Engine,
    Admin,
}

impl Peer {
    /// What to do when nobody answers.
    const fn advice(self) -> &'static str {
        match self {
            Self::Engine => "is the engine running?",
            Self::Admin => "start `rankway up`, or correct --admin-url",
        }
    }

    /// What to think of an answer that makes no sense.
    const fn doubt(self) -> &'static str {
        match self {
            Self::Engine => "is this a fake engine? others do not say what they hold",
            Self::Admin => {
                "is this the admin API of a router, or of `rankway up`? correct --admin-url"
            }
        }
    }
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
    fn new(token: Option<String>, peer: Peer) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            token,
            peer,
        }
    }

    /// A client of engines.
    pub(crate) fn of_engines() -> Self {
        Self::new(None, Peer::Engine)
    }

    /// A client of the admin API.
    pub(crate) fn of_admin(args: &AdminArgs) -> Self {
        Self::new(args.admin_token.clone(), Peer::Admin)
    }

    /// Asks and reads the answer as JSON; a status other than 200 is an error that quotes the answer.
    pub(crate) async fn get<T: DeserializeOwned>(&self, url: &str) -> anyhow::Result<T> {
        let body = self.fetch(url, "application/json").await?;
        serde_json::from_slice(&body)
            .with_context(|| format!("understand the answer of {url} ({})", self.peer.doubt()))
    }

    /// Asks and reads the answer as text.
    pub(crate) async fn get_text(&self, url: &str) -> anyhow::Result<String> {
        let body = self.fetch(url, "text/plain").await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Asks for something to be done, and reads the answer as JSON.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        url: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let request = Request::builder().method(Method::POST).uri(url);
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let body = self.send(url, request, serde_json::to_vec(body)?).await?;
        serde_json::from_slice(&body)
            .with_context(|| format!("understand the answer of {url} ({})", self.peer.doubt()))
    }

    async fn fetch(&self, url: &str, accept: &str) -> anyhow::Result<Bytes> {
        let request = Request::builder().method(Method::GET).uri(url);
        let request = request.header(header::ACCEPT, accept);
        self.send(url, request, Vec::new()).await
    }

    async fn send(
        &self,
        url: &str,
        mut request: http::request::Builder,
        body: Vec<u8>,
    ) -> anyhow::Result<Bytes> {
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Full::from(body))
            .with_context(|| format!("{url:?} is no URL: write http://host:port"))?;
        let response = self.client.request(request).await;
        let response =
            response.with_context(|| format!("nobody answers at {url}: {}", self.peer.advice()))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await;
        let body = body
            .map_err(|error| anyhow::anyhow!("read the answer of {url}: {error}"))?
            .to_bytes();
        if status != StatusCode::OK {
            bail!("{url} {}", self.refusal(url, status, &body));
        }
        Ok(body)
    }

    /// What an answer of another status than 200 means.
    fn refusal(&self, url: &str, status: StatusCode, body: &[u8]) -> String {
        if status == StatusCode::UNAUTHORIZED {
            return match self.token {
                Some(_) => "has another admin token: the token is not the one that is set".into(),
                None => "asks for the admin token: give --admin-token".into(),
            };
        }
        let refusal = serde_json::from_slice::<Refusal>(body).ok();
        // Who does not know the path is somebody else.
        let unknown = |it: &Refusal| it.error.message.split(' ').any(|word| is_path(word, url));
        if status.is_client_error() && refusal.as_ref().is_none_or(unknown) {
            return format!("answered {status}: {}", self.peer.doubt());
        }
        let answer = match refusal {
            Some(refusal) => refusal.error.message,
            None => String::from_utf8_lossy(body).trim().to_owned(),
        };
        format!("answered {status}: {answer}")
    }
}

/// Whether `word` is the path of `url`.
fn is_path(word: &str, url: &str) -> bool {
    word.len() > 1 && word.starts_with('/') && url.ends_with(word)
}
