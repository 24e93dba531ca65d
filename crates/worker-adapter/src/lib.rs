//! The worker adapter: finds out what each engine is, keeps it in the fleet, and carries requests to it in
//! its own dialect.

mod address;
mod client;
mod config;
mod dispatch;
mod first_rank;
mod headers;
mod metrics;
mod passage;
mod probe;
mod request;
mod roster;
mod service;
mod sse;
mod watcher;

pub use address::{EngineUrl, EventsAt, InvalidAddress, ZmqBase};
pub use config::{Config, ConfigError, EngineName, HeaderSpaceName, WorkerConfig};
pub use probe::{ProbeError, probe};
pub use service::{StartError, WorkerAdapter};
