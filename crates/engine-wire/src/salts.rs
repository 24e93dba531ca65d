//! Which engines keep caches apart by a salt in a request's body, under the same name everywhere.
//!
//! Found by reading the sources of releases. Where an engine is not listed it passes over the field, or, as
//! `trtllm-serve`, refuses the request for it.

use domain::{Endpoint, EngineKind, RankControl, Worker};

/// The field of a request's body.
pub const SALT_FIELD: &str = "cache_salt";

/// Whether `worker` heeds [`SALT_FIELD`] in requests to `endpoint`. Where it does not, its cache serves whoever has the
/// same tokens.
pub fn takes_salt(worker: &Worker, endpoint: Endpoint) -> bool {
    use Endpoint::{Chat, Completions, Embeddings, Messages, Responses};
    match (worker.engine, endpoint) {
        (EngineKind::Vllm | EngineKind::Sglang, Chat | Completions | Responses) => true,
        (EngineKind::Vllm | EngineKind::Sglang, Messages | Embeddings) => false,
        (EngineKind::TensorRtLlm, Chat) => true,
        // The worker in `deploy/trtllm`, which takes ranks, takes it here too; `trtllm-serve`, which takes none, refuses
        // any field that it does not know.
        (EngineKind::TensorRtLlm, Completions) => {
            *worker.capability.rank_control.get(endpoint) != RankControl::None
        }
        (EngineKind::TensorRtLlm, Responses | Messages | Embeddings) => false,
        (EngineKind::LlamaCpp, _) => false,
    }
}
