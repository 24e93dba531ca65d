//! One worker's tasks: its incarnation, a rank task for each endpoint, and what reads for them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bus::Bus;
use domain::{DpRank, Epoch, KvEndpoints, RankEndpoint, Timestamp, Worker};
use event_feed::Position;
use service_kit::{CancellationToken, Clock};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

use crate::claims::Claims;
use crate::config::Config;
use crate::drain::{self, Drain, Lane};
use crate::epoch::{EpochError, RETRY, WorkerEpoch};
use crate::findings::Findings;
use crate::metrics::Metrics;
use crate::pages::{self, Geometry};
use crate::positions::PositionReports;
use crate::rank::{Parts, RankError, RankTask, Resync};
use crate::shelf::Shelf;
use crate::subscriber::{self, Intake, Subscriber};
use crate::warnings::Warnings;

/// Resyncs waiting for one rank: each indexer asks for a rank once at a time.
const RESYNCS: usize = 16;

/// What all workers share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) reports: PositionReports,
    pub(crate) shelf: Shelf,
    pub(crate) metrics: Metrics,
    pub(crate) findings: Findings,
}

pub(crate) struct WorkerTask {
    pub(crate) worker: Worker,
    pub(crate) kept: BTreeMap<DpRank, Position>,
    pub(crate) epoch: WorkerEpoch,
    pub(crate) shared: Shared,
    pub(crate) clock: Clock,
    pub(crate) resyncs: mpsc::Receiver<Resync>,
    /// Dropped when all its ranks have been tried; none when readiness does not wait for them.
    pub(crate) first_attempt: Option<mpsc::Sender<Infallible>>,
}

/// Why a worker's tasks cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error("read the incarnation of {worker}")]
    Epoch {
        worker: String,
        #[source]
        source: EpochError,
    },
    #[error("read the kept pages of {worker}")]
    Pages {
        worker: String,
        #[source]
        source: sled::Error,
    },
    #[error(transparent)]
    Rank(#[from] RankError),
    #[error("a task of a rank failed")]
    Panicked(#[from] JoinError),
}

impl WorkerTask {
    /// Runs until `shutdown`, and returns how far its ranks came.
    pub(crate) async fn run(
        mut self,
        shutdown: CancellationToken,
    ) -> Result<BTreeMap<DpRank, Position>, WorkerError> {
        let kept_pages = Arc::new(Mutex::new(self.kept_pages().await?));
        let Some(epoch_now) = self.first_epoch(&shutdown).await? else {
            return Ok(BTreeMap::new());
        };
        let endpoints = match self.worker.kv_endpoints.clone() {
            KvEndpoints::None => return Ok(BTreeMap::new()),
            KvEndpoints::Zmq(endpoints) => endpoints,
            KvEndpoints::Drained(url) => drain::endpoints(&self.worker, &url),
        };
        let _unread = self.shared.findings.unread(&self.worker, &endpoints);
        let kept = Arc::new(self.kept.clone());
        let claims = Claims::new(self.worker.clone());
        let mut intakes = Vec::new();
        let mut ranks = JoinSet::new();
        let mut rank_resyncs = Vec::new();
        for (socket, endpoint) in endpoints.into_iter().enumerate() {
            let (to, intake) = mpsc::channel(subscriber::QUEUE);
            let (resyncs, for_rank) = mpsc::channel(RESYNCS);
            rank_resyncs.push(resyncs);
            intakes.push((endpoint.clone(), to));
            let parts = Parts {
                worker: self.worker.clone(),
                socket,
                kept: kept.clone(),
                kept_pages: kept_pages.clone(),
                epoch_now,
                epoch: self.epoch.clone(),
                claims: claims.clone(),
                config: self.shared.config.clone(),
                bus: self.shared.bus.clone(),
                reports: self.shared.reports.clone(),
                metrics: self.shared.metrics.of(&self.worker.id, endpoint.dp_rank),
                finding: self.shared.findings.of(&self.worker, &endpoint),
                intake,
                resyncs: for_rank,
                first_attempt: self.first_attempt.clone(),
                endpoint,
            };
            ranks.spawn(RankTask::new(parts).run(shutdown.clone()));
        }
        let readers = self.readers(intakes);
        self.attend(rank_resyncs, ranks, readers).await
    }

    /// What reads the worker's events into the queues of its ranks.
    fn readers(&self, intakes: Vec<(RankEndpoint, mpsc::Sender<Intake>)>) -> JoinSet<()> {
        let mut readers = JoinSet::new();
        if let KvEndpoints::Drained(url) = &self.worker.kv_endpoints {
            let lane = |(endpoint, to): (RankEndpoint, _)| Lane {
                dp_rank: endpoint.dp_rank,
                to,
                metrics: self.shared.metrics.of(&self.worker.id, endpoint.dp_rank),
            };
            let lanes = intakes.into_iter().map(lane).collect();
            let last = self.kept.values().map(|position| position.engine_ts).max();
            let last = last.unwrap_or(Timestamp::ZERO);
            let drain = Drain::new(&self.worker, url.clone(), lanes, self.clock, last);
            readers.spawn(drain.run());
        } else {
            for (endpoint, to) in intakes {
                readers.spawn(self.subscriber(&endpoint, to).run());
            }
        }
        readers
    }

    /// Passes on resyncs until all ranks have ended.
    async fn attend(
        mut self,
        rank_resyncs: Vec<mpsc::Sender<Resync>>,
        mut ranks: JoinSet<Result<Option<(DpRank, Position)>, RankError>>,
        mut readers: JoinSet<()>,
    ) -> Result<BTreeMap<DpRank, Position>, WorkerError> {
        // From here on only the ranks hold up readiness.
        drop(self.first_attempt);
        let mut reached = BTreeMap::new();
        loop {
            tokio::select! {
                biased;
                ended = ranks.join_next() => match ended {
                    Some(ended) => reached.extend(ended??),
                    None => return Ok(reached),
                },
                // They end with the ranks they read for.
                Some(ended) = readers.join_next() => ended?,
                Some(resync) = self.resyncs.recv() => {
                    for rank in &rank_resyncs {
                        if let Err(TrySendError::Full(_)) = rank.try_send(resync) {
                            let metrics = self.shared.metrics.of(&self.worker.id, resync.dp_rank);
                            metrics.event("resync_overflow");
                        }
                    }
                }
            }
        }
    }

    fn subscriber(&self, endpoint: &RankEndpoint, to: mpsc::Sender<Intake>) -> Subscriber {
        Subscriber {
            endpoint: endpoint.clone(),
            to,
            metrics: self.shared.metrics.of(&self.worker.id, endpoint.dp_rank),
            warnings: Warnings::default(),
        }
    }

    /// The pages of its ranks, where they are gathered. A position counts as kept only with the pages at it.
    async fn kept_pages(&mut self) -> Result<BTreeMap<DpRank, pages::Kept>, WorkerError> {
        let Some(geometry) = Geometry::of(self.worker.page_size, self.worker.block_size) else {
            return Ok(BTreeMap::new());
        };
        // Tasks of this worker that have just ended may have reported more than is written.
        self.shared.reports.settled().await;
        let (shelf, worker) = (self.shared.shelf.clone(), self.worker.id.clone());
        let ranks: Vec<DpRank> = self.kept.keys().copied().collect();
        let loading = tokio::task::spawn_blocking(move || {
            let mut loaded = BTreeMap::new();
            for rank in ranks {
                if let Some(kept) = shelf.load(&(worker.clone(), rank))? {
                    loaded.insert(rank, kept);
                }
            }
            Ok(loaded)
        });
        let loaded: Result<BTreeMap<DpRank, pages::Kept>, sled::Error> = loading.await?;
        let mut loaded = loaded.map_err(|source| WorkerError::Pages {
            worker: self.worker.id.to_string(),
            source,
        })?;
        loaded.retain(|_, kept| kept.geometry == geometry);
        self.kept.retain(|rank, _| loaded.contains_key(rank));
        Ok(loaded)
    }

    /// The epoch to begin with; none at the end of the process.
    async fn first_epoch(
        &self,
        shutdown: &CancellationToken,
    ) -> Result<Option<Epoch>, WorkerError> {
        loop {
            match self.epoch_to_join().await {
                Ok(epoch) => return Ok(Some(epoch)),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(worker = %self.worker.id, %error, "trying again");
                }
                Err(source) => {
                    let worker = self.worker.id.to_string();
                    return Err(WorkerError::Epoch { worker, source });
                }
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(None),
                () = sleep(RETRY) => {}
            }
        }
    }

    /// The table's epoch, if it is known how far any rank was published in it. Otherwise a new one: events
    /// of an engine that is not there any more may lie in the log under the same numbers.
    async fn epoch_to_join(&self) -> Result<Epoch, EpochError> {
        let kept = self.kept.values().map(|position| position.epoch).max();
        let table = self.epoch.read().await?;
        match (table, kept) {
            (None, None) => self.epoch.at_least(Epoch::FIRST, "first seen").await,
            (Some(table), Some(kept)) if table == kept => Ok(table),
            (table, kept) => {
                let above = table.max(kept).unwrap_or(Epoch::FIRST);
                let why = "taken up without its positions";
                self.epoch.raise(above, why).await
            }
        }
    }
}
