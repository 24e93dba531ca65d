//! Asking for events again.

use async_trait::async_trait;
use domain::{EventSeq, Target};

use super::CallError;

/// The event ingest.
#[async_trait]
pub trait Feed: Send + Sync {
    /// Publishes the events of `target` from `from` on once more, or a Reset where the engine no longer
    /// keeps them. Returns once the request is queued; the events come through the log.
    async fn resync(&self, target: &Target, from: EventSeq) -> Result<(), CallError>;
}
