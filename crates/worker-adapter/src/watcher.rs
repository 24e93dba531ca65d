//! The life of one worker as its adapter sees it: probe, register, scrape, renew, give up.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Expect, Key, Record};
use bytes::Bytes;
use contracts::{Encoding, FleetEntry, LoadReport, topics};
use domain::{Epoch, FirstRank, Incarnation, TargetState, Timestamp, Worker, WorkerId};
use service_kit::{CancellationToken, Clock, Component};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::client::EngineClient;
use crate::config::{EngineName, WorkerConfig};
use crate::first_rank::{find_out, learn};
use crate::metrics::Metrics;
use crate::probe::{ProbeError, ask_load, identify, probe_as};
use crate::roster::Roster;

/// How often gauges are scraped, and an engine that does not answer is tried again.
const SCRAPE_EVERY: Duration = Duration::from_millis(500);
/// How long a registration holds.
const LEASE: Duration = Duration::from_secs(15);
/// How often the engine is asked all about itself and its registration renewed.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Failures in a row after which a worker is gone: fewer than a lease has renewals.
const FAILURES_UNTIL_GONE: u32 = 3;
/// After so long without a renewal no other adapter reaches the worker either.
const UNRENEWED: Duration = Duration::from_secs(6);
const _: () = assert!(RENEW_EVERY.as_secs() < UNRENEWED.as_secs());
/// Another adapter that has not renewed the registration for so long is not there any more.
const ANOTHER: Duration = LEASE;

/// How often an incarnation is tried whose answers show nothing of its first ranks.
const MAX_TRIALS: u32 = 3;

/// Watches one worker.
pub(crate) struct Watcher {
    pub(crate) id: WorkerId,
    pub(crate) config: WorkerConfig,
    pub(crate) client: EngineClient,
    pub(crate) roster: Roster,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) component: Component,
}

/// What is known of the worker.
struct Known {
    /// As last registered; none while it does not answer.
    registered: Option<(Worker, Instant)>,
    /// Until when the lease holds that was last written here.
    told_until: Option<Timestamp>,
    /// When another adapter's registration of the worker was last seen.
    another: Option<Instant>,
    /// The worker as it was before it stopped answering, as long as others may still reach it.
    unreached: Option<Worker>,
    /// Which engine it is; asked again after a failure, because another may have taken its place.
    engine: Option<EngineName>,
    /// Whether its load was unknown when last asked, which is logged once.
    unknown_load: bool,
    /// What trying it has shown of first ranks.
    tried: Option<Tried>,
    /// Failures in a row.
    failures: u32,
    /// The failure last logged, so that a lasting one is logged once.
    complaint: Option<String>,
}

/// What trying an incarnation has shown of whether it keeps first ranks.
struct Tried {
    epoch: Epoch,
    version: String,
    first_rank: FirstRank,
    times: u32,
}

impl Tried {
    /// Whether another trial would show nothing else.
    fn is_over(&self) -> bool {
        match self.first_rank {
            FirstRank::ProvedKept | FirstRank::ProvedLost => true,
            _ => MAX_TRIALS <= self.times,
        }
    }
}

impl Watcher {
    /// Watches until `shutdown`. The registration stays until its lease ends: of the engine nothing is said, and
    /// another adapter may reach it, or this one be back soon.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut ticks = interval(SCRAPE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known = Known {
            registered: None,
            told_until: None,
            another: None,
            unreached: None,
            engine: None,
            tried: None,
            unknown_load: false,
            failures: 0,
            complaint: None,
        };
        let watch = async {
            loop {
                ticks.tick().await;
                self.tick(&mut known).await;
                self.roster.asked(&self.id);
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = watch => {}
        }
        self.roster.release(&self.id);
    }

    async fn tick(&self, known: &mut Known) {
        let due = match &known.registered {
            None => true,
            // A scrape that succeeds says nothing of why the last question failed.
            Some((worker, since)) => {
                worker.state != TargetState::Ready
                    || 0 < known.failures
                    || RENEW_EVERY <= since.elapsed()
            }
        };
        let outcome = match due {
            true => self.renew(known).await,
            false => self.scrape(known).await,
        };
        match outcome {
            Ok(()) => {
                known.failures = 0;
                known.complaint = None;
            }
            Err(error) => self.failed(known, error).await,
        }
    }

    /// Asks the engine all about itself and registers the answer. What the bus does not take is no fault of
    /// the engine: requests still reach it.
    async fn renew(&self, known: &mut Known) -> Result<(), ProbeError> {
        let engine = self.engine(known).await?;
        let mut worker = probe_as(&self.client, &self.config, engine).await?;
        let before = known.registered.as_ref().map(|(worker, _)| worker.state);
        if worker.state == TargetState::Warming && before == Some(TargetState::Ready) {
            // It was ready, so it does not warm up: it fails.
            let worker = worker.id;
            return Err(ProbeError::Unhealthy { worker });
        }
        worker.epoch = self.epoch(known).await;
        if worker.capability.first_rank == FirstRank::Unproven && worker.state == TargetState::Ready
        {
            self.try_first_ranks(known, &mut worker).await;
        }
        worker.lease_until = self.clock.now() + LEASE;
        if before != Some(worker.state) {
            info!(
                worker = %worker.id, %engine, url = worker.url, model = %worker.model, state = worker.state.name(),
                ranks = worker.dp_size, start_rank = worker.start_rank,
                block_size = worker.block_size.get(), version = worker.version, "found"
            );
        }
        let first_byte = self.config.first_byte();
        self.roster
            .set(self.config.url.clone(), worker.clone(), first_byte);
        let warms = worker.state != TargetState::Ready;
        let complaint = warms.then(|| format!("{} is not healthy", self.id));
        self.report_health(complaint);
        self.look_for_another(known).await;
        self.register(known, &worker).await;
        known.unreached = None;
        known.registered = Some((worker, Instant::now()));
        Ok(())
    }

    /// Finds out whether it keeps first ranks, unless that is known of this incarnation.
    async fn try_first_ranks(&self, known: &mut Known, worker: &mut Worker) {
        let tried = known.tried.take();
        let tried = tried.filter(|it| it.epoch == worker.epoch && it.version == worker.version);
        let tried = match tried {
            Some(tried) if tried.is_over() => tried,
            before => {
                let first_rank = find_out(&self.client, &self.config.url, worker).await;
                if before.as_ref().map(|it| it.first_rank) != Some(first_rank) {
                    let (worker, epoch) = (&worker.id, worker.epoch);
                    match first_rank.is_kept() {
                        true => info!(%worker, %epoch, "{first_rank}"),
                        false => warn!(%worker, %epoch, "{first_rank}: no rank is chosen there"),
                    }
                }
                Tried {
                    epoch: worker.epoch,
                    version: worker.version.clone(),
                    first_rank,
                    times: before.map_or(0, |it| it.times) + 1,
                }
            }
        };
        learn(worker, known.tried.insert(tried).first_rank);
    }

    async fn engine(&self, known: &mut Known) -> Result<EngineName, ProbeError> {
        match known.engine {
            Some(engine) => Ok(engine),
            None => {
                let engine = identify(&self.client, &self.config).await?;
                Ok(*known.engine.insert(engine))
            }
        }
    }

    /// Reads the engine's gauges and publishes them.
    async fn scrape(&self, known: &mut Known) -> Result<(), ProbeError> {
        let engine = self.engine(known).await?;
        let at = self.clock.now();
        let scrape = ask_load(&self.client, &self.config, engine).await?;
        let ranks = scrape.ranks.iter();
        let report = LoadReport {
            worker: self.id.clone(),
            ranks: ranks
                .filter_map(|(rank, gauges)| gauges.load(*rank, at))
                .collect(),
        };
        let unknown_load = report.ranks.is_empty();
        if unknown_load && !known.unknown_load {
            let hint = "requests of others are not seen: let it serve its metrics";
            warn!(worker = %self.id, %engine, hint, "engine does not say its load");
        }
        known.unknown_load = unknown_load;
        let partition = topics::LOAD.partition_of(self.id.as_str());
        let published = self.bus.append(&partition, vec![Record(report.to_bytes())]);
        if let Err(error) = published.await {
            // A report is worth nothing half a second later.
            self.unpublished(&error);
        }
        Ok(())
    }

    async fn failed(&self, known: &mut Known, error: ProbeError) {
        known.failures += 1;
        known.engine = None;
        let by_worker = &[self.id.as_str()];
        let counter = self.metrics.probe_failures.with_label_values(by_worker);
        counter.inc();
        let complaint = format!("{:#}", anyhow::Error::new(error));
        if known.complaint.as_ref() != Some(&complaint) {
            warn!(worker = %self.id, error = complaint, "engine does not answer");
            known.complaint = Some(complaint.clone());
        }
        if FAILURES_UNTIL_GONE <= known.failures
            && let Some((mut worker, _)) = known.registered.take()
        {
            warn!(worker = %self.id, failures = known.failures, "gone");
            self.roster.lose(&self.id);
            known.tried = None;
            worker.state = TargetState::Gone;
            known.unreached = Some(worker);
        }
        if let Some(mut worker) = known.unreached.take() {
            self.look_for_another(known).await;
            match self.is_reached_by_another(known).await {
                true => known.unreached = Some(worker),
                false => {
                    worker.lease_until = self.clock.now() + LEASE;
                    self.register(known, &worker).await;
                }
            }
        }
        self.report_health(Some(complaint));
    }

    /// The adapter does its job as long as it can reach any engine, and says what is amiss with the others.
    fn report_health(&self, complaint: Option<String>) {
        self.roster.complain(&self.id, complaint);
        let complaints = self.roster.complaints();
        if self.roster.any_ready() {
            self.component.ready();
            self.component.finds(complaints);
        } else {
            self.component.waiting(complaints.join("; "));
            self.component.finds(Vec::new());
        }
    }

    /// The worker as the fleet has it.
    async fn entry(&self) -> Option<Worker> {
        let entry = self.bus.get(&topics::FLEET.table, &key_of(&self.id)).await;
        let entry = entry.inspect_err(|error| self.unpublished(error)).ok()??;
        match FleetEntry::from_bytes(&entry.value) {
            Ok(FleetEntry::Worker(worker)) => Some(worker),
            Ok(FleetEntry::Service(_)) | Err(_) => None,
        }
    }

    /// Sees whether the worker was registered by somebody else since this adapter did.
    async fn look_for_another(&self, known: &mut Known) {
        let entry = self.entry().await;
        let leased = entry.filter(|it| self.clock.now() < it.lease_until);
        if leased.is_some_and(|it| known.told_until != Some(it.lease_until)) {
            known.another = Some(Instant::now());
        }
    }

    /// Whether another adapter reaches the worker, or is still to say whether it does.
    async fn is_reached_by_another(&self, known: &Known) -> bool {
        if known.another.is_none_or(|it| ANOTHER <= it.elapsed()) {
            return false;
        }
        let entry = self.entry().await;
        entry.is_some_and(|it| {
            let unrenewed = self.clock.now() + LEASE;
            it.state != TargetState::Gone && unrenewed.since(it.lease_until) < UNRENEWED
        })
    }

    async fn register(&self, known: &mut Known, worker: &Worker) {
        known.told_until = Some(worker.lease_until);
        let value = FleetEntry::Worker(worker.clone()).to_bytes();
        let key = key_of(&self.id);
        let table = &topics::FLEET.table;
        if let Err(error) = self.bus.put(table, key, Some(value), Expect::Any).await {
            self.unpublished(&error);
        }
    }

    /// The worker's incarnation: the first until somebody has said otherwise, the last one known while
    /// nobody can be asked.
    async fn epoch(&self, known: &Known) -> Epoch {
        let key = key_of(&self.id);
        let last = known.registered.as_ref().map(|(worker, _)| worker.epoch);
        let last = last.unwrap_or(Epoch::FIRST);
        match self.bus.get(&topics::INCARNATIONS.table, &key).await {
            Ok(None) => Epoch::FIRST,
            Ok(Some(entry)) => match Incarnation::from_bytes(&entry.value) {
                Ok(incarnation) => incarnation.epoch,
                Err(error) => {
                    warn!(worker = %self.id, %error, "incarnation not understood");
                    last
                }
            },
            Err(error) => {
                self.unpublished(&error);
                last
            }
        }
    }

    /// Counts what the bus did not take or give, and says so the first time.
    fn unpublished(&self, error: &BusError) {
        let by_worker = &[self.id.as_str()];
        let counter = self.metrics.unpublished.with_label_values(by_worker);
        if counter.get() == 0 {
            warn!(worker = %self.id, %error, "the bus fails; from now on this is only counted");
        }
        counter.inc();
    }
}

fn key_of(id: &WorkerId) -> Key {
    Key(Bytes::copy_from_slice(id.as_str().as_bytes()))
}
