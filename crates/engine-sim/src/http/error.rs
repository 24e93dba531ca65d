//! Errors in vLLM's shape: `{"error": {"message", "type", "param", "code"}}`.

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
            error: Shape {
                message: &self.message,
                kind: self.kind,
                param: self.param,
                code: self.status.as_u16(),
            },
        };
        serde_json::to_string(&envelope).expect("texts and numbers have a JSON form")
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
        (self.status, json).into_response()
    }
}
