//! Keeps, from the log of KV-cache events, which target holds which prefix, and answers who does.

mod answers;
mod config;

use std::sync::Arc;

use bus::Bus;
use contracts::rpc::{Feed, Index};
use service_kit::{CancellationToken, Context};

use answers::Answers;

pub use config::Config;

/// The service. Take its [`Indexer::index`] before [`Indexer::run`].
pub struct Indexer {
    config: Config,
    bus: Arc<dyn Bus>,
    feed: Arc<dyn Feed>,
    context: Context,
    answers: Arc<Answers>,
}

impl Indexer {
    /// An indexer that has read nothing yet.
    pub fn new(
        config: Config,
        bus: Arc<dyn Bus>,
        feed: Arc<dyn Feed>,
        context: Context,
    ) -> anyhow::Result<Self> {
        let answers = Arc::new(Answers::new(&config, context.clock));
        Ok(Self {
            config,
            bus,
            feed,
            context,
            answers,
        })
    }

    /// Answers from this process's own index, from now on and for as long as the handle is kept.
    pub fn index(&self) -> Arc<dyn Index> {
        self.answers.clone()
    }

    /// Follows the log until told to stop.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        shutdown.cancelled().await;
        Ok(())
    }
}
