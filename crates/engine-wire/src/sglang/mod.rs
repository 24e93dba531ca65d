//! SGLang's side of the wire beyond reading events, in both directions.
//!
//! A fake server encodes with [`encode_server_info`], [`encode_metrics`], [`BatchEncoder`] and
//! [`encode_meta_info`]; its list of models, its usage and its answers of `/tokenize` have vLLM's forms
//! ([`crate::encode_models`], [`crate::vllm::encode_tokenized`]).

mod events;
mod loads;
mod meta_info;
mod metrics;
mod server_info;

pub use events::BatchEncoder;
pub use loads::parse_loads;
pub use meta_info::{MetaInfo, encode_meta_info, parse_meta_info};
pub use metrics::{encode_metrics, parse_metrics};
pub use server_info::{
    KvEvents, ServerInfo, ServerInfoError, encode_server_info, is_server_info, parse_server_info,
};

/// The request header that names a rank, from 0 on in each server, since 0.5.10.
pub const RANK_HEADER: &str = "X-Data-Parallel-Rank";
/// The field of a chat request that makes its answer say which rank ran, since 0.5.13 and only where nothing is
/// streamed; see [`parse_meta_info`].
pub const REPORT_FIELD: &str = "return_meta_info";
