//! How a TensorRT-LLM is told which conversation a request belongs to.

use domain::ConversationId;

/// The field of a chat or completion request. Its servers take no other fields in it.
pub const CONVERSATION_FIELD: &str = "conversation_params";

/// The field's value, a JSON object.
pub fn conversation_params(conversation: &ConversationId) -> String {
    serde_json::json!({ "conversation_id": conversation.as_str() }).to_string()
}

/// Whether the answer to `GET /v1/models` is TensorRT-LLM's. Anything that is no list of models is not.
pub fn lists_models(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct List {
        data: Vec<Entry>,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        owned_by: Option<String>,
    }
    let list = serde_json::from_slice::<List>(body);
    list.is_ok_and(|list| {
        let mut owners = list.data.iter().map(|it| it.owned_by.as_deref());
        owners.any(|owner| owner == Some("tensorrt_llm"))
    })
}
