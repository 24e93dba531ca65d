//! Where logs go: standard error, filtered by `RANKWAY_LOG`.

use tracing_subscriber::EnvFilter;

use crate::settings::LOG_VARIABLE;

/// A log filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "the log filter {filter:?} cannot be read ({why}); write a level such as info, or target=level"
)]
pub struct InvalidFilter {
    filter: String,
    why: String,
}

/// Starts logging to standard error. The filter is `RANKWAY_LOG`, else `default`.
#[expect(
    clippy::disallowed_methods,
    reason = "this crate is where the environment is read"
)]
pub fn init_logging(default: &str) -> Result<(), InvalidFilter> {
    let filter = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| default.to_owned());
    let parsed = EnvFilter::try_new(&filter).map_err(|why| InvalidFilter {
        why: why.to_string(),
        filter,
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .finish();
    // A second call in one process, as tests make, keeps the first subscriber.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}
