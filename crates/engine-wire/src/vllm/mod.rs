//! vLLM's side of the wire beyond reading events: what a fake engine publishes, and the HTTP dialect in both
//! directions.

mod endpoints;
mod events;
mod metrics;
mod models;
mod tokenize;
mod usage;

pub use endpoints::{
    BasePorts, PortsError, SourcesError, computed_endpoints, encode_kv_event_sources,
    parse_kv_event_sources,
};
pub use events::BatchEncoder;
pub use metrics::{Gauges, Scrape, encode_metrics, parse_metrics};
pub use models::{Model, ModelsError, encode_models, parse_models};
pub use tokenize::{TokenizeError, Tokenized, encode_tokenized, parse_tokenized, tokenize_request};
pub use usage::{encode_usage, parse_usage};

/// The request header that names a rank, as numbered by the worker's [`domain::HeaderSpace`].
pub const RANK_HEADER: &str = "X-data-parallel-rank";
