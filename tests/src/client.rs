//! A client of the OpenAI API that stands for a balancer before several routers: each request goes to the next one, and
//! to the one after where it is refused or breaks off before its first byte.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout};

/// How long a probe waits.
const SOON: Duration = Duration::from_secs(1);

/// Connections to whoever is asked.
#[derive(Clone)]
pub(crate) struct Http {
    pool: Pool<HttpConnector, Full<Bytes>>,
}

impl Default for Http {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).build(connector);
        Self { pool }
    }
}

impl Http {
    /// Reads the JSON of a 200 answer; another status is an error that quotes it.
    pub(crate) async fn get<T: DeserializeOwned>(&self, url: &str) -> anyhow::Result<T> {
        let text = self.get_text(url).await?;
        serde_json::from_str(&text).with_context(|| format!("understand {url}"))
    }

    /// Asks for something to be done; a status that is no success is an error.
    pub(crate) async fn post(&self, url: &str) -> anyhow::Result<()> {
        let request = Request::post(url).body(Full::default())?;
        let response = self.pool.request(request).await;
        let status = response.with_context(|| format!("ask {url}"))?.status();
        ensure!(status.is_success(), "{url} answered {status}");
        Ok(())
    }

    /// The same of one who may not answer for long, as while it starts.
    pub(crate) async fn get_soon(&self, url: &str) -> anyhow::Result<String> {
        let answer = timeout(SOON, self.get_text(url)).await;
        answer.with_context(|| format!("{url} does not answer within {SOON:?}"))?
    }

    /// Reads the text of a 200 answer; another status is an error that quotes it.
    pub(crate) async fn get_text(&self, url: &str) -> anyhow::Result<String> {
        let request = Request::get(url).body(Full::default())?;
        let response = self.pool.request(request).await;
        let response = response.with_context(|| format!("ask {url}"))?;
        let status = response.status();
        let body = response.into_body().collect().await;
        let body = body.with_context(|| format!("read {url}"))?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        ensure!(status == StatusCode::OK, "{url} answered {status}: {text}");
        Ok(text)
    }
}

/// Sends requests to routers in turn.
pub(crate) struct Client {
    http: Http,
    routers: Vec<SocketAddr>,
    next: AtomicUsize,
    retried_elsewhere: AtomicU64,
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A router was not reached, or its answer broke off before the first byte.
    #[error("before the first byte: {0:#}")]
    Unbegun(anyhow::Error),
    /// An answer broke off after the first byte.
    #[error("after the first byte: {0:#}")]
    Broken(anyhow::Error),
    /// A router said so.
    #[error("{0}: {1}")]
    Refused(StatusCode, String),
}

/// A request for tokens.
#[derive(Clone)]
pub(crate) struct Ask<'a> {
    /// Such as `/v1/chat/completions`.
    pub(crate) path: &'a str,
    /// The id of its conversation, where it has one.
    pub(crate) conversation: Option<&'a str>,
    /// Its own name, by which the engine lists it.
    pub(crate) request_id: &'a str,
    /// The body, streamed or not.
    pub(crate) body: Bytes,
}

/// An answer of status 200, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    /// From sending to the first byte of the body.
    pub(crate) ttft: Duration,
    /// What was generated.
    pub(crate) text: String,
}

impl Client {
    /// A client of these routers.
    pub(crate) fn of(routers: Vec<SocketAddr>) -> Self {
        Self {
            http: Http::default(),
            routers,
            next: AtomicUsize::new(0),
            retried_elsewhere: AtomicU64::new(0),
        }
    }

    /// How often a request went to another router because one was not reached, or broke off before its first byte.
    pub(crate) fn retried_elsewhere(&self) -> u64 {
        self.retried_elsewhere.load(Ordering::Relaxed)
    }

    /// Asks the next router, and where that cannot be reached the others.
    pub(crate) async fn ask(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let router = |number: usize| self.routers[number % self.routers.len()];
        let mut answer = self.send(router(first), ask.clone()).await;
        for further in 1..self.routers.len() {
            if !matches!(answer, Err(Failure::Unbegun(_))) {
                break;
            }
            self.retried_elsewhere.fetch_add(1, Ordering::Relaxed);
            answer = self.send(router(first + further), ask.clone()).await;
        }
        answer
    }

    async fn send(&self, router: SocketAddr, ask: Ask<'_>) -> Result<Answer, Failure> {
        let mut request = Request::post(format!("http://{router}{}", ask.path))
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-request-id", ask.request_id);
        if let Some(conversation) = ask.conversation {
            request = request.header("x-rankway-conversation", conversation);
        }
        let request = request.body(Full::new(ask.body));
        let request = request.map_err(|it| Failure::Unbegun(it.into()))?;
        let sent = Instant::now();
        let response = self.http.pool.request(request);
        let response = response.await.map_err(|it| Failure::Unbegun(it.into()))?;
        let (head, mut body) = response.into_parts();
        let mut ttft = None;
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|it| match ttft {
                None => Failure::Unbegun(it.into()),
                Some(_) => Failure::Broken(it.into()),
            })?;
            if let Some(data) = frame.data_ref().filter(|it| !it.is_empty()) {
                ttft.get_or_insert_with(|| sent.elapsed());
                read.extend_from_slice(data);
            }
        }
        let read = String::from_utf8_lossy(&read);
        if head.status != StatusCode::OK {
            return Err(Failure::Refused(head.status, read.trim().to_owned()));
        }
        let ttft = ttft.context("the answer is empty");
        Ok(Answer {
            ttft: ttft.map_err(Failure::Unbegun)?,
            text: text_of(&read).map_err(Failure::Broken)?,
        })
    }
}

/// What an engine generated, told at once or in a stream.
fn text_of(body: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    if !body.starts_with("data:") {
        add_text(body, &mut text)?;
        return Ok(text);
    }
    let frames = body.lines().filter_map(|it| it.strip_prefix("data:"));
    let mut done = false;
    for frame in frames.map(str::trim) {
        match frame {
            "[DONE]" => done = true,
            frame => add_text(frame, &mut text)?,
        }
    }
    ensure!(done, "the answer broke off");
    Ok(text)
}

fn add_text(object: &str, text: &mut String) -> anyhow::Result<()> {
    let object: Value = serde_json::from_str(object).context("a part is no JSON")?;
    ensure!(object["error"].is_null(), "{}", object["error"]);
    let choice = &object["choices"][0];
    let places = [
        &choice["text"],
        &choice["message"]["content"],
        &choice["delta"]["content"],
    ];
    places
        .into_iter()
        .filter_map(Value::as_str)
        .for_each(|it| text.push_str(it));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::text_of;

    #[test]
    fn an_answer_is_read_whole_and_streamed() {
        let whole = r#"{"choices":[{"message":{"content":"a b"}}],"usage":{"prompt_tokens":3}}"#;
        let streamed = r#"data: {"choices":[{"delta":{"content":"a"}}],"usage":null}

data: {"choices":[{"delta":{"content":" b"}}]}

data: {"choices":[],"usage":{"prompt_tokens":3}}

data: [DONE]

"#;
        for body in [whole, streamed] {
            assert_eq!(text_of(body).unwrap(), "a b");
        }
        let broken = streamed.replace("data: [DONE]", "");
        assert!(text_of(&broken).is_err());
        let failed = streamed.replace("[DONE]", r#"{"error":{"message":"gone"}}"#);
        assert!(text_of(&failed).unwrap_err().to_string().contains("gone"));
    }
}
