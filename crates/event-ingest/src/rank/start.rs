//! What a rank's task is made of, and what it begins with.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bus::Bus;
use domain::{DpRank, Epoch, RankEndpoint, Worker};
use engine_wire::EventBatch;
use event_feed::{Position, RankFeed, ReplayOffer, Rules};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Resync;
use crate::claims::Claims;
use crate::config::Config;
use crate::epoch::WorkerEpoch;
use crate::findings::Finding;
use crate::metrics::RankMetrics;
use crate::outbox::Outbox;
use crate::pages;
use crate::positions::PositionReports;
use crate::quiet::Quiet;
use crate::subscriber::Intake;
use crate::translate::Translator;

/// Live messages held back while a replay runs; a rank publishes up to some hundred a second, and ten
/// thousand are replayed in less than one.
const HOLD_LIMIT: usize = 1_024;
/// Replays in a row that may bring nothing before what is missing is given up, after some twenty seconds.
const REPLAY_ATTEMPTS: u32 = 6;
/// What a rank's task is made of.
pub(crate) struct Parts {
    pub(crate) worker: Worker,
    /// Its place among the worker's endpoints.
    pub(crate) socket: usize,
    pub(crate) endpoint: RankEndpoint,
    /// What is kept of the worker's ranks.
    pub(crate) kept: Arc<BTreeMap<DpRank, Position>>,
    /// The pages at those positions, where they are gathered; each is taken once.
    pub(crate) kept_pages: Arc<Mutex<BTreeMap<DpRank, pages::Kept>>>,
    pub(crate) epoch_now: Epoch,
    pub(crate) epoch: WorkerEpoch,
    pub(crate) claims: Claims,
    pub(crate) config: Arc<Config>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) reports: PositionReports,
    pub(crate) metrics: RankMetrics,
    pub(crate) finding: Finding,
    pub(crate) intake: mpsc::Receiver<Intake>,
    pub(crate) resyncs: mpsc::Receiver<Resync>,
    /// Dropped when the first attempt to reach the rank has ended, well or not.
    pub(crate) first_attempt: Option<mpsc::Sender<Infallible>>,
}

impl Parts {
    pub(super) fn feed(&self, rank: DpRank, epoch: Epoch) -> RankFeed<EventBatch> {
        let replay = match self.endpoint.replay {
            Some(_) => ReplayOffer::Offered,
            None => ReplayOffer::Absent,
        };
        let rules = Rules {
            replay,
            hold_limit: HOLD_LIMIT,
            attempts: REPLAY_ATTEMPTS,
        };
        match self.position(rank, epoch) {
            Some(position) => RankFeed::resume(*position, rules),
            None => RankFeed::attach(epoch, rules),
        }
    }

    /// Whoever resumes where the rank was published knows the pages as they were then.
    pub(super) fn translator(&self, rank: DpRank, epoch: Epoch) -> Translator {
        let secret = self.config.session_secret.as_deref().map(Arc::from);
        let Worker {
            model,
            block_size,
            page_size,
            ..
        } = &self.worker;
        // Nobody can leave the map half changed.
        let kept_pages = self.kept_pages.lock();
        let mut kept_pages = kept_pages.unwrap_or_else(PoisonError::into_inner);
        let position = self.position(rank, epoch);
        let kept = position.and_then(|it| Some((it.seq, kept_pages.remove(&rank)?)));
        Translator::new(model.clone(), *block_size, secret).gathering(*page_size, kept)
    }

    pub(super) fn quiet(&self, now: Instant) -> Quiet {
        Quiet::new(self.config.quiet(), self.config.silence(), now)
    }

    pub(super) fn outbox(&self, rank: DpRank) -> Outbox {
        let worker = self.worker.id.clone();
        let finding = self.finding.of_log(&worker, rank);
        Outbox::new(
            worker,
            rank,
            self.bus.clone(),
            self.reports.clone(),
            finding,
        )
    }

    /// How far `rank` was published in `epoch`.
    fn position(&self, rank: DpRank, epoch: Epoch) -> Option<&Position> {
        self.kept.get(&rank).filter(|it| it.epoch == epoch)
    }
}
