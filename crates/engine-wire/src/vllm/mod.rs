//! vLLM's side of the wire beyond reading events: what a fake engine publishes, and the HTTP dialect in both
//! directions.

mod endpoints;
mod events;
mod metrics;
mod tokenize;

pub use endpoints::{SourcesError, encode_kv_event_sources, parse_kv_event_sources};
pub use events::BatchEncoder;
pub use metrics::{encode_metrics, parse_metrics};
pub use tokenize::{Tokenized, encode_tokenized, parse_tokenized, tokenize_request};

// What all engines share, under the names it had when only this one was spoken.
pub use crate::gauges::{Gauges, Scrape};
pub use crate::models::{Model, ModelsError, encode_models, parse_models};
pub use crate::ports::{BasePorts, PortsError, computed_endpoints};
pub use crate::usage::parse_usage;

/// The request header that names a rank, as numbered by the worker's [`domain::HeaderSpace`].
pub const RANK_HEADER: &str = "X-data-parallel-rank";
