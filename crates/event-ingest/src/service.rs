//! The service: follows the fleet, and runs a worker's tasks for as long as its registration stands.

use std::convert::Infallible;
use std::sync::Arc;

use bus::Bus;
use contracts::rpc::{CallError, Feed};
use contracts::topics::{FLEET, INCARNATIONS};
use domain::WorkerId;
use service_kit::{CancellationToken, Component, Context};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::config::Config;
use crate::findings::Findings;
use crate::metrics::Metrics;
use crate::positions::{Positions, PositionsError};
use crate::resync::{self, ResyncHandle, ResyncRequest};
use crate::roster::Roster;
use crate::table::{Step, TableReader};
use crate::worker::Shared;

/// The folder within `data_dir`.
const POSITIONS: &str = "positions";

/// The service. Take its [`EventIngest::feed`] before [`EventIngest::run`].
pub struct EventIngest {
    config: Config,
    bus: Arc<dyn Bus>,
    context: Context,
    component: Component,
    metrics: Metrics,
    handle: ResyncHandle,
    requests: mpsc::Receiver<ResyncRequest>,
}

/// Why the ingest cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another service has registered the same metrics.
    #[error("register metrics")]
    Metrics(#[from] prometheus::Error),
}

impl EventIngest {
    /// Nothing is read before [`EventIngest::run`].
    pub fn new(config: Config, bus: Arc<dyn Bus>, context: Context) -> Result<Self, StartError> {
        let (handle, requests) = resync::channel();
        Ok(Self {
            config,
            bus,
            component: context.health.component("event-ingest"),
            metrics: Metrics::new(&context.registry)?,
            context,
            handle,
            requests,
        })
    }

    /// The way to ask for events again, from now on and for as long as the handle is kept.
    pub fn feed(&self) -> Arc<dyn Feed> {
        Arc::new(self.handle.clone())
    }

    /// Follows the fleet until told to stop. It is ready when each rank of the fleet it found has been
    /// tried, or after `startup_ms`.
    ///
    /// Fails where a person must look: an unusable store, a bus without the project's topics.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let positions = self.open_positions().await?;
        let (reports, writer) = positions.writer(self.context.clock);
        let shared = Shared {
            config: Arc::new(self.config.clone()),
            bus: self.bus.clone(),
            reports,
            shelf: positions.shelf(),
            metrics: self.metrics,
            findings: Findings::new(self.component.clone()),
        };
        let (first_attempt, attempts) = mpsc::channel(1);
        let tables = Tables {
            fleet: TableReader::new(self.bus.clone(), FLEET.table),
            incarnations: TableReader::new(self.bus.clone(), INCARNATIONS.table),
        };
        let readiness = Readiness {
            component: self.component,
            attempts,
            deadline: Instant::now() + self.config.startup(),
            reached: false,
        };
        let mut writers = JoinSet::new();
        writers.spawn(writer.run());
        let roster = Roster::new(shared, self.context.clock, positions, first_attempt);
        let outcome = attend(
            roster,
            tables,
            readiness,
            self.requests,
            &mut writers,
            &shutdown,
        )
        .await;
        // All who report have ended: the writer writes what it has and ends as well.
        while let Some(ended) = writers.join_next().await {
            ended??;
        }
        outcome
    }

    /// Opening the store reads its files: not on a thread of the runtime.
    async fn open_positions(&self) -> anyhow::Result<Positions> {
        let folder = self.config.data_dir.join(POSITIONS);
        let now = self.context.clock.now();
        let opening = tokio::task::spawn_blocking(move || Positions::open(&folder, now));
        Ok(opening.await??)
    }
}

struct Tables {
    fleet: TableReader,
    incarnations: TableReader,
}

/// When the service says that it is ready.
struct Readiness {
    component: Component,
    /// Closed when every rank's first attempt has ended.
    attempts: mpsc::Receiver<Infallible>,
    deadline: Instant,
    reached: bool,
}

impl Readiness {
    async fn wait(&mut self) {
        tokio::select! {
            biased;
            _closed = self.attempts.recv() => {}
            () = sleep_until(self.deadline) => {
                tracing::warn!("some ranks have not been reached yet");
            }
        }
    }

    fn reach(&mut self) {
        self.reached = true;
        self.component.ready();
    }
}

async fn attend(
    mut roster: Roster,
    mut tables: Tables,
    mut readiness: Readiness,
    mut requests: mpsc::Receiver<ResyncRequest>,
    writers: &mut JoinSet<Result<(), PositionsError>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    readiness.component.waiting("reading the fleet");
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(ended) = writers.join_next() => ended??,
            Some(ended) = roster.next_ended() => roster.ended(ended?),
            step = tables.incarnations.next() => roster.learn(step?),
            step = tables.fleet.next() => {
                let step = step?;
                if matches!(step, Step::CaughtUp(_)) && !readiness.reached {
                    readiness.component.waiting("trying the ranks");
                }
                roster.follow(step);
            }
            Some(request) = requests.recv() => answer(&roster, request),
            () = readiness.wait(), if !readiness.reached && roster.is_caught_up() => readiness.reach(),
        }
    }
    roster.stop().await
}

fn answer(roster: &Roster, request: ResyncRequest) {
    let result = roster.resync(&request.target, request.from);
    // A caller that has gone does not want the answer.
    let _gone = request.answer.send(result);
}

/// What a caller is told of a worker that is not read.
pub(crate) fn unknown(worker: &WorkerId) -> CallError {
    CallError::InvalidArgument {
        why: format!("no events are read from worker {worker}"),
    }
}
