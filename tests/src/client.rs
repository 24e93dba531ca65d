//! A client of the OpenAI API: each request goes to the next router, and none is tried again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
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
use tokio::time::Instant;

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
}

/// A request for tokens.
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
        }
    }

    /// Asks the next router.
    pub(crate) async fn ask(&self, ask: Ask<'_>) -> anyhow::Result<Answer> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let router = self.routers[number % self.routers.len()];
        let name = ask.request_id;
        let answer = self.send(router, ask).await;
        answer.with_context(|| format!("request {name} to router {router}"))
    }

    async fn send(&self, router: SocketAddr, ask: Ask<'_>) -> anyhow::Result<Answer> {
        let mut request = Request::post(format!("http://{router}{}", ask.path))
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-request-id", ask.request_id);
        if let Some(conversation) = ask.conversation {
            request = request.header("x-rankway-conversation", conversation);
        }
        let request = request.body(Full::new(ask.body))?;
        let sent = Instant::now();
        let response = self.http.pool.request(request);
        let (head, mut body) = response.await.context("send")?.into_parts();
        let mut ttft = None;
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame.context("read the answer")?.data_ref() {
                ttft.get_or_insert_with(|| sent.elapsed());
                read.extend_from_slice(data);
            }
        }
        let read = String::from_utf8(read).context("the answer is no text")?;
        ensure!(
            head.status == StatusCode::OK,
            "{}: {}",
            head.status,
            read.trim()
        );
        Ok(Answer {
            ttft: ttft.context("the answer is empty")?,
            text: text_of(&read)?,
        })
    }
}

/// What an engine generated, told at once or in a stream.
fn text_of(body: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    if !body.starts_with("data:") {
        add_text(body, &mut text).context("the answer is no JSON")?;
        return Ok(text);
    }
    let frames = body.lines().filter_map(|it| it.strip_prefix("data:"));
    let mut done = false;
    for frame in frames.map(str::trim) {
        match frame {
            "[DONE]" => done = true,
            frame => add_text(frame, &mut text).context("a frame is no JSON")?,
        }
    }
    ensure!(done, "the answer broke off");
    Ok(text)
}

fn add_text(object: &str, text: &mut String) -> serde_json::Result<()> {
    let object: Value = serde_json::from_str(object)?;
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
    }
}
