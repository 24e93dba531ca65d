//! `GET /v1/models`.

use domain::ModelName;
use serde::{Deserialize, Serialize};

/// One model a server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name by which clients ask for it; a LoRA adapter is listed like a model.
    pub name: ModelName,
    /// The longest context in tokens, where the server says.
    pub max_model_len: Option<u32>,
    /// The model that an adapter adapts.
    pub parent: Option<ModelName>,
}

/// Why a list of models cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// It is not a list of models.
    #[error("read the list of models")]
    Json(#[from] serde_json::Error),
    /// A model's id is no model name.
    #[error("read a model's id")]
    Name(#[from] domain::InvalidId),
}

#[derive(Deserialize, Serialize)]
struct List {
    object: Option<String>,
    data: Vec<Entry>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    id: String,
    object: Option<String>,
    created: Option<u64>,
    owned_by: Option<String>,
    max_model_len: Option<u32>,
    parent: Option<String>,
}

/// Reads the answer to `GET /v1/models`, in its order.
pub fn parse_models(body: &[u8]) -> Result<Vec<Model>, ModelsError> {
    let list: List = serde_json::from_slice(body)?;
    let model = |entry: Entry| {
        Ok(Model {
            name: entry.id.parse()?,
            max_model_len: entry.max_model_len,
            parent: entry.parent.map(|parent| parent.parse()).transpose()?,
        })
    };
    list.data.into_iter().map(model).collect()
}

/// The body that answers `GET /v1/models` at `created`, in whole seconds since the epoch: like vLLM, which
/// dates each model by the answer. `owner` is how the engine calls itself there.
pub fn encode_models(models: &[Model], owner: &str, created: u64) -> String {
    let entry = |model: &Model| Entry {
        id: model.name.to_string(),
        object: Some("model".to_owned()),
        created: Some(created),
        owned_by: Some(owner.to_owned()),
        max_model_len: model.max_model_len,
        parent: model.parent.as_ref().map(ToString::to_string),
    };
    let list = List {
        object: Some("list".to_owned()),
        data: models.iter().map(entry).collect(),
    };
    serde_json::to_string(&list).expect("texts and numbers have a JSON form")
}
