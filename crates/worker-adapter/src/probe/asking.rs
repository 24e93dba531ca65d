//! Questions to an engine, and what it means when they are not answered.

use anyhow::Error;
use bytes::Bytes;

use super::ProbeError;
use crate::address::EngineUrl;
use crate::client::{Answer, BoxError, EngineClient};
use crate::config::EngineName;

/// How much of an engine's own text is repeated in errors and logs, in bytes.
pub(super) const QUOTED_BYTES: usize = 256;

/// The beginning of an engine's own text.
pub(super) fn quoted(text: String) -> String {
    match text.len() <= QUOTED_BYTES {
        true => text,
        false => format!("{}…", &text[..text.floor_char_boundary(QUOTED_BYTES)]),
    }
}

/// What is wrong with an answer, which it may quote.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Wrong(String);

/// One engine to be asked.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) client: &'a EngineClient,
    pub(super) url: &'a EngineUrl,
    /// What it is thought to be.
    pub(super) engine: EngineName,
}

impl Asking<'_> {
    /// Whatever it answers.
    pub(super) async fn ask(&self, path: &'static str) -> Result<Answer, ProbeError> {
        let asked = self.client.ask(self.url, path).await;
        asked.map_err(|source| ProbeError::Unreachable {
            url: self.url.clone(),
            source,
        })
    }

    /// The body of an answer that every version of the engine gives.
    pub(super) async fn require(&self, path: &'static str) -> Result<Bytes, ProbeError> {
        let answer = self.ask(path).await?;
        match answer.status {
            200 => Ok(answer.body),
            status => Err(ProbeError::Status {
                url: self.url.clone(),
                path,
                status,
                engine: self.engine,
            }),
        }
    }

    /// The body of an answer that some versions of the engine, or some of its settings, do not give.
    pub(super) async fn optional(&self, path: &'static str) -> Result<Option<Bytes>, ProbeError> {
        let answer = self.ask(path).await?;
        Ok((answer.status == 200).then_some(answer.body))
    }

    pub(super) fn strange(&self, path: &'static str, source: impl Into<BoxError>) -> ProbeError {
        ProbeError::Answer {
            url: self.url.clone(),
            path,
            engine: self.engine,
            source: Wrong(quoted(format!("{:#}", Error::from_boxed(source.into())))).into(),
        }
    }

    /// The body of a required answer that is text.
    pub(super) fn text<'b>(
        &self,
        path: &'static str,
        body: &'b [u8],
    ) -> Result<&'b str, ProbeError> {
        std::str::from_utf8(body).map_err(|source| self.strange(path, source))
    }
}
