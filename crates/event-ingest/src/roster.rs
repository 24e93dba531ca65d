//! The workers that are registered, and the tasks of those that run.

use std::collections::BTreeMap;
use std::convert::Infallible;

use contracts::FleetEntry;
use contracts::rpc::CallError;
use domain::{DpRank, EventSeq, KvEndpoints, Target, Worker, WorkerId};
use event_feed::Position;
use service_kit::{CancellationToken, Clock};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use crate::epoch::WorkerEpoch;
use crate::positions::Positions;
use crate::rank::Resync;
use crate::resync::unavailable;
use crate::service::unknown;
use crate::table::Step;
use crate::worker::{Shared, WorkerError, WorkerTask};

/// Resyncs waiting for one worker's tasks.
const RESYNCS: usize = 64;

/// How far the ranks of a worker whose tasks have ended came.
pub(crate) struct Ended {
    worker: WorkerId,
    reached: BTreeMap<DpRank, Position>,
}

struct Running {
    worker: Worker,
    epoch: WorkerEpoch,
    resyncs: mpsc::Sender<Resync>,
    stop: CancellationToken,
}

pub(crate) struct Roster {
    shared: Shared,
    clock: Clock,
    positions: Positions,
    /// Workers with events as `fleet` has them.
    wanted: BTreeMap<WorkerId, Worker>,
    running: BTreeMap<WorkerId, Running>,
    tasks: JoinSet<Result<Ended, WorkerError>>,
    /// Given to the first tasks, until the fleet has caught up.
    first_attempt: Option<mpsc::Sender<Infallible>>,
}

impl Roster {
    pub(crate) fn new(
        shared: Shared,
        clock: Clock,
        positions: Positions,
        first_attempt: mpsc::Sender<Infallible>,
    ) -> Self {
        Self {
            shared,
            clock,
            positions,
            wanted: BTreeMap::new(),
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            first_attempt: Some(first_attempt),
        }
    }

    /// Whether every worker that was registered at the start has been taken up.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.first_attempt.is_none()
    }

    /// A step of the table `fleet`.
    pub(crate) fn follow(&mut self, step: Step) {
        match step {
            Step::Put(key, entry) => {
                match FleetEntry::heard(&entry.value, &key.0, self.clock.now()) {
                    Ok(FleetEntry::Worker(worker)) => self.want(worker),
                    Ok(FleetEntry::Service(_)) => {}
                    Err(error) => {
                        let error: &dyn std::error::Error = &error;
                        tracing::error!(?key, error, "a registration is refused");
                    }
                }
            }
            Step::Deleted(key) => {
                let gone = self.wanted.keys().find(|id| key.0 == id.as_str());
                if let Some(gone) = gone.cloned() {
                    self.unwant(&gone);
                }
            }
            Step::CaughtUp(keys) => {
                let is_there = |id: &&WorkerId| keys.iter().any(|key| key.0 == id.as_str());
                let gone: Vec<_> = self
                    .wanted
                    .keys()
                    .filter(|id| !is_there(id))
                    .cloned()
                    .collect();
                gone.iter().for_each(|id| self.unwant(id));
                self.first_attempt = None;
            }
        }
    }

    /// A step of the table `incarnations`.
    pub(crate) fn learn(&self, step: Step) {
        let Step::Put(key, entry) = step else {
            return;
        };
        let of_key = self.running.iter().find(|(id, _)| key.0 == id.as_str());
        if let Some((worker, running)) = of_key
            && let Err(error) = running.epoch.learn(&entry)
        {
            let error: &dyn std::error::Error = &error;
            tracing::error!(%worker, error, "an incarnation is unreadable");
        }
    }

    /// Passes a request on to the rank it is about.
    pub(crate) fn resync(&self, target: &Target, from: EventSeq) -> Result<(), CallError> {
        let running = self
            .running
            .get(&target.worker)
            .filter(|running| running.worker.owns(target.dp_rank))
            .ok_or_else(|| unknown(&target.worker))?;
        match running.epoch.current() {
            Some(epoch) if epoch == target.epoch => {}
            Some(epoch) => {
                let why = format!("worker {} is in epoch {epoch}", target.worker);
                return Err(CallError::FailedPrecondition { why });
            }
            None => return Err(unavailable("the worker is being taken up")),
        }
        let resync = Resync {
            dp_rank: target.dp_rank,
            epoch: target.epoch,
            from,
        };
        let sent = running.resyncs.try_send(resync);
        sent.map_err(|_| unavailable("too many requests wait for the worker"))
    }

    /// The next worker whose tasks have ended, if any run.
    pub(crate) async fn next_ended(&mut self) -> Option<Result<Ended, EndedBadly>> {
        let ended = self.tasks.join_next().await?;
        Some(ended.map_err(EndedBadly::from).and_then(|it| Ok(it?)))
    }

    /// Takes note of it, and starts the worker's tasks again if it is still wanted.
    pub(crate) fn ended(&mut self, ended: Ended) {
        self.running.remove(&ended.worker);
        let reached = ended.reached.into_iter();
        let of_ranks = reached.map(|(rank, position)| ((ended.worker.clone(), rank), position));
        self.positions.note(of_ranks.collect());
        self.reconcile(&ended.worker);
    }

    /// Ends all tasks.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        for running in self.running.values() {
            running.stop.cancel();
        }
        while let Some(ended) = self.next_ended().await {
            ended?;
        }
        Ok(())
    }

    fn want(&mut self, worker: Worker) {
        let id = worker.id.clone();
        match worker.kv_endpoints {
            KvEndpoints::None => {
                self.wanted.remove(&id);
            }
            KvEndpoints::Zmq(_) | KvEndpoints::Drained(_) => {
                self.wanted.insert(id.clone(), worker);
            }
        }
        self.reconcile(&id);
    }

    fn unwant(&mut self, id: &WorkerId) {
        self.wanted.remove(id);
        self.reconcile(id);
    }

    /// Brings what runs nearer to what is wanted. Tasks that must go are told to end; others in their place
    /// begin when they have.
    fn reconcile(&mut self, id: &WorkerId) {
        match (self.wanted.get(id), self.running.get(id)) {
            (Some(wanted), Some(running)) if is_read_alike(wanted, &running.worker) => {}
            (_, Some(running)) => running.stop.cancel(),
            (Some(wanted), None) => self.start(wanted.clone()),
            (None, None) => {}
        }
    }

    fn start(&mut self, worker: Worker) {
        let id = worker.id.clone();
        tracing::info!(worker = %id, ranks = worker.dp_size, "reading events");
        let epoch = WorkerEpoch::new(self.shared.bus.clone(), self.clock, id.clone());
        let (resyncs, for_worker) = mpsc::channel(RESYNCS);
        let stop = CancellationToken::new();
        let task = WorkerTask {
            worker: worker.clone(),
            kept: self.positions.of(&id),
            epoch: epoch.clone(),
            shared: self.shared.clone(),
            clock: self.clock,
            resyncs: for_worker,
            first_attempt: self.first_attempt.clone(),
        };
        let running = task.run(stop.clone());
        let of_worker = id.clone();
        self.tasks.spawn(async move {
            let reached = running.await?;
            Ok(Ended {
                worker: of_worker,
                reached,
            })
        });
        let running = Running {
            worker,
            epoch,
            resyncs,
            stop,
        };
        self.running.insert(id, running);
    }
}

/// Why a worker's tasks ended though nobody told them to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndedBadly {
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("the tasks of a worker failed")]
    Panicked(#[from] JoinError),
}

/// Whether two registrations of a worker differ only in what the reading of its events does not depend on,
/// such as its lease.
fn is_read_alike(one: &Worker, other: &Worker) -> bool {
    let read = |worker: &Worker| {
        (
            worker.model.clone(),
            worker.start_rank,
            worker.dp_size,
            worker.block_size,
            worker.page_size,
            worker.kv_endpoints.clone(),
        )
    };
    read(one) == read(other)
}
