//! Errors in vLLM's shape, `{"error": {"message", "type", "param", "code"}}`, and in SGLang's.

use axum::Extension;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use domain::ModelName;
use engine_model::Refused;
use serde::Serialize;

use crate::driver::Stopped;

/// An error as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Shape<'a>,
}

#[derive(Serialize)]
struct Shape<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<&'static str>,
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'static str>,
    code: u16,
}

impl ApiError {
    /// The request is at fault; `param` names the field, where it is one.
    pub(crate) fn bad_request(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: message.into(),
            param,
        }
    }

    /// No such model; `served` is the base model, the only one that vLLM names.
    pub(crate) fn unknown_model(name: &str, served: &ModelName) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{name}` does not exist. Valid aliases: {served}."),
            param: Some("model"),
        }
    }

    /// The error as JSON.
    pub(crate) fn json(&self) -> String {
        let envelope = Envelope {
            error: self.shape(None),
        };
        serde_json::to_string(&envelope).expect("texts and numbers have a JSON form")
    }

    /// The error as JSON without an envelope, as SGLang has it.
    pub(crate) fn flat_json(&self) -> String {
        let shape = self.shape(Some("error"));
        serde_json::to_string(&shape).expect("texts and numbers have a JSON form")
    }

    fn shape(&self, object: Option<&'static str>) -> Shape<'_> {
        Shape {
            object,
            message: &self.message,
            kind: self.kind,
            param: self.param,
            code: self.status.as_u16(),
        }
    }
}

impl From<Stopped> for ApiError {
    fn from(stopped: Stopped) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "InternalServerError",
            message: stopped.to_string(),
            param: None,
        }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        Self::bad_request(refused.to_string(), None)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = super::json(self.json());
        // Whoever speaks another dialect writes it anew.
        (self.status, Extension(self), json).into_response()
    }
}
