//! Keeps, from the log of KV-cache events, which target holds which prefix, and answers who does.
//!
//! One task reads the log and writes the index (`run`); readers share it (`answers`). Each target's
//! stream is followed by its own cursor (`position`): repeats are dropped, holes make the target suspect
//! and are asked for again (`resync`). What is applied is saved behind the index (`store`), and a restart
//! takes up there and reads the rest of the log.

mod answers;
mod asked;
mod beginning;
mod config;
mod dump;
mod fleet;
mod http;
mod members;
mod metrics;
mod partitions;
mod pieces;
mod position;
mod resync;
mod run;
mod saving;
mod siblings;
mod store;
mod tables;
mod tracked;
mod writer;

use std::sync::Arc;

use bus::Bus;
use contracts::rpc::{Feed, Index, Shard};
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
pub use siblings::siblings;

/// The service. Take its [`Indexer::index`] before [`Indexer::run`].
pub struct Indexer {
    config: Config,
    bus: Arc<dyn Bus>,
    feed: Arc<dyn Feed>,
    context: Context,
    metrics: Metrics,
    health: Component,
    store_health: Component,
    answers: Arc<Answers>,
    wanted: mpsc::Receiver<Wanted>,
    siblings: Vec<Arc<dyn Index>>,
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
        let named = |part: &str| match config.shard {
            Shard::WHOLE => part.to_owned(),
            shard => format!("{part} {shard}"),
        };
        Ok(Self {
            metrics: Metrics::new(&context.registry, config.shard)?,
            health: context.health.component(named("indexer")),
            store_health: context.health.component(named("index store")),
            answers: Arc::new(Answers::new(&config, context.clock, dumps)),
            wanted,
            siblings: Vec::new(),
            config,
            bus,
            feed,
            context,
        })
    }

    /// Where there is no store to begin with, takes up what the first of `siblings` that tells everything holds,
    /// instead of reading the log from its beginning: the log may not reach back far enough. Several shards that are
    /// one sibling together come as [`contracts::rpc::Shards`]; whom `fleet` knows of, [`siblings()`] says.
    pub fn with_siblings(mut self, siblings: Vec<Arc<dyn Index>>) -> Self {
        self.siblings = siblings;
        self
    }

    /// Answers from this process's own index, from now on and for as long as the handle is kept.
    pub fn index(&self) -> Arc<dyn Index> {
        self.answers.clone()
    }

    /// The same over HTTP, in the shape of other indexers: `POST /query` and `/query_by_hash`, `GET /workers` and
    /// `/health`. Of models and their block sizes it knows what it has read of `fleet`.
    pub fn routes(&self) -> axum::Router {
        http::routes(self.answers.clone())
    }

    /// Reads the store, then follows the log until told to stop. Fails only where the store's folder cannot
    /// be used; what is wrong with the bus or the store's content is mended or waited for.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        self.health.waiting("the store is being read");
        let opening = saving::open(&self.config, self.metrics.clone(), self.store_health);
        let (saving, mut index, mut loaded) = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            opened = opening => opened?,
        };
        tracing::info!(ranks = loaded.ranks.len(), "store read");
        if !saving.is_complete() && !self.siblings.is_empty() {
            self.health.waiting("a sibling's dump is being taken up");
            let shard = self.config.shard;
            let taking =
                beginning::from_siblings(&self.siblings, shard, self.config.departed_blocks);
            let taken = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                taken = taking => taken,
            };
            if let Some(taken) = taken {
                (index, loaded) = taken;
            }
        }
        let stored = saving.is_complete();
        self.answers.begin(index);
        let clock = self.context.clock;
        let mut writer = Writer::new(
            self.answers.clone(),
            self.feed,
            self.metrics.clone(),
            clock,
            self.config.gone_grace(),
        );
        writer.take_up(&loaded, self.config.shard);
        if !stored {
            writer.forget_store();
        }
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
