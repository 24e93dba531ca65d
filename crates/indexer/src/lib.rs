//! Keeps, from the log of KV-cache events, which target holds which prefix, and answers who does.
//!
//! One task reads the log and writes the index (`run`); readers share it (`answers`). Each target's
//! stream is followed by its own cursor (`position`): repeats are dropped, holes make the target suspect
//! and are asked for again (`resync`). What is applied is saved behind the index (`store`), and a restart
//! takes up there and reads the rest of the log.

mod answers;
mod asked;
mod config;
mod dump;
mod fleet;
mod metrics;
mod partitions;
mod pieces;
mod position;
mod resync;
mod run;
mod saving;
mod store;
mod tables;
mod writer;

use std::sync::Arc;

use bus::Bus;
use contracts::rpc::{Feed, Index};
use service_kit::{CancellationToken, Component, Context};
use tokio::sync::mpsc;

use crate::answers::Answers;
use crate::dump::Wanted;
use crate::metrics::Metrics;
use crate::partitions::Partitions;
use crate::run::{Looks, Loop};
use crate::tables::Watched;
use crate::writer::Writer;

pub use config::Config;

/// The service. Take its [`Indexer::index`] before [`Indexer::run`].
pub struct Indexer {
    config: Config,
    bus: Arc<dyn Bus>,
    feed: Arc<dyn Feed>,
    context: Context,
    metrics: Metrics,
    health: Component,
    answers: Arc<Answers>,
    wanted: mpsc::Receiver<Wanted>,
}

impl Indexer {
    /// An indexer that has read nothing yet, and waits in `context.health` until it is level with the log
    /// as it was at the start. Fails if its metrics are registered already.
    pub fn new(
        config: Config,
        bus: Arc<dyn Bus>,
        feed: Arc<dyn Feed>,
        context: Context,
    ) -> Result<Self, prometheus::Error> {
        let (dumps, wanted) = dump::dumps();
        Ok(Self {
            metrics: Metrics::new(&context.registry)?,
            health: context.health.component("indexer"),
            answers: Arc::new(Answers::new(&config, context.clock, dumps)),
            wanted,
            config,
            bus,
            feed,
            context,
        })
    }

    /// Answers from this process's own index, from now on and for as long as the handle is kept.
    pub fn index(&self) -> Arc<dyn Index> {
        self.answers.clone()
    }

    /// Reads the store, then follows the log until told to stop. Fails only where the store's folder cannot
    /// be used; what is wrong with the bus or the store's content is mended or waited for.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        self.health.waiting("the store is being read");
        let saved = self.context.health.component("index store");
        let opening = saving::open(&self.config, self.metrics.clone(), saved);
        let (saving, index, loaded) = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            opened = opening => opened?,
        };
        tracing::info!(ranks = loaded.ranks.len(), "store read");
        self.answers.write().index = index;
        let clock = self.context.clock;
        let mut writer = Writer::new(
            self.answers.clone(),
            self.feed,
            self.metrics.clone(),
            clock,
            self.config.gone_grace(),
        );
        writer.take_up(&loaded, self.config.shard);
        let running = Loop {
            bus: self.bus,
            answers: self.answers,
            writer,
            partitions: Partitions::new(&loaded.cursors, self.config.shard),
            saving,
            metrics: self.metrics,
            clock,
            health: self.health,
            fleet: Watched::fleet(),
            incarnations: Watched::incarnations(),
            looks: Looks::default(),
            wanted: self.wanted,
        };
        running.run(shutdown).await;
        Ok(())
    }
}
