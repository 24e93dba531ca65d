//! The loop: one task that owns the writer, the partitions and the store.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Tail};
use contracts::{Encoding, topics};
use domain::{KvBatch, Target, Timestamp};
use service_kit::{CancellationToken, Clock, Component, error_chain};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};

use crate::answers::Answers;
use crate::dump::Wanted;
use crate::metrics::Metrics;
use crate::partitions::{self, Item, Opened, Partitions, Read};
use crate::saving::{Done, Saving, Then};
use crate::tables::{self, Watched};
use crate::writer::Writer;

/// How often the loop looks at what is due.
const TICK: Duration = Duration::from_millis(50);
/// How long what was applied may wait for a save.
const SAVE_AFTER: Duration = Duration::from_millis(200);
/// How many operations may wait for a save.
const SAVE_OPS: usize = 1000;
/// How many may wait while one is going on, before the log is not read on: some seconds of a busy fleet.
const MAX_UNSAVED_OPS: usize = 20_000;
/// How often the tails of the log are asked for, and gauges set.
const LOOK_AFTER: Duration = Duration::from_millis(500);
/// Ticks between sweeps of the fleet and of what was let go.
const TIDY_AFTER: Duration = Duration::from_secs(1);

/// Everything that the loop owns.
pub(crate) struct Loop {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) answers: Arc<Answers>,
    pub(crate) writer: Writer,
    pub(crate) partitions: Partitions,
    pub(crate) saving: Saving,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    pub(crate) health: Component,
    pub(crate) fleet: Watched,
    pub(crate) incarnations: Watched,
    pub(crate) looks: Looks,
    /// Parts of dumps to be given.
    pub(crate) wanted: mpsc::Receiver<Wanted>,
}

/// The ends of the partitions, and when they were asked for.
type Look = (Timestamp, Result<Vec<(u32, Tail)>, BusError>);

/// Asking how long the log is.
#[derive(Default)]
pub(crate) struct Looks {
    asked_at: Timestamp,
    tidied_at: Timestamp,
    asking: JoinSet<Look>,
    /// Whether the index has been level once.
    was_level: bool,
    /// Where the log ended when it was last asked, until the index has come so far.
    goal: Option<(Timestamp, Vec<(u32, Tail)>)>,
}

fn partition_of(target: &Target) -> u32 {
    topics::kv_events_of(&target.worker, target.dp_rank).index
}

impl Loop {
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let may_read = !self.saving.is_on() || self.writer.unsaved_ops() < MAX_UNSAVED_OPS;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                done = self.saving.done() => self.note_saving(done),
                answer = self.writer.resyncs.answered() => {
                    self.writer.resyncs.note(answer, self.clock.now());
                }
                changes = self.incarnations.next() => match changes {
                    Some(changes) => tables::incarnations(&mut self.writer, changes),
                    None => self.metrics.reopened.inc(),
                },
                changes = self.fleet.next() => match changes {
                    Some(changes) => {
                        tables::registrations(&mut self.writer, changes, self.clock.now());
                    }
                    None => self.metrics.reopened.inc(),
                },
                Some(tails) = self.looks.asking.join_next() => self.looked(tails),
                _ = ticks.tick() => self.tick().await,
                Some(wanted) = self.wanted.recv() => self.give(wanted),
                Some(read) = self.partitions.next(), if may_read => {
                    self.read(read);
                    // A long log may have no pause of its own, and others share the thread.
                    tokio::task::consume_budget().await;
                }
            }
            self.save_if_due();
        }
        self.stop().await;
    }

    fn read(&mut self, Read { partition, item }: Read) {
        match item {
            Item::Record(delivered) => {
                let before = self.partitions.took(partition, delivered.offset);
                match KvBatch::from_bytes(&delivered.record.0) {
                    Ok(batch) if partition_of(&batch.target) == partition => {
                        self.writer.take(batch, before);
                    }
                    // It was not written by who speaks for its rank, and has no order with what was.
                    Ok(batch) => {
                        self.metrics.batch("misplaced");
                        let target = &batch.target;
                        warn!(partition, %target, "a batch in another rank's partition skipped");
                    }
                    Err(error) => {
                        self.metrics.batch("malformed");
                        let offset = delivered.offset.0;
                        warn!(partition, offset, %error, "unreadable batch skipped");
                    }
                }
            }
            Item::Ended(error) => {
                self.metrics.reopened.inc();
                if let Some(error) = &error {
                    warn!(partition, %error, "reading the log ended");
                }
                if self
                    .partitions
                    .ended(partition, error.as_ref(), self.clock.now())
                {
                    self.writer.lose(partition);
                }
            }
        }
    }

    /// Whoever asked may have gone meanwhile.
    fn give(&self, wanted: Wanted) {
        match wanted {
            Wanted::Begin(reply) => {
                let writer = &self.writer;
                let cursors = self.partitions.cursors(|it| writer.held_since(it));
                let beginning = self.writer.beginning(cursors);
                drop(reply.send(beginning));
            }
            Wanted::Rank(target, reply) => drop(reply.send(self.writer.dump(&target))),
        }
    }

    async fn tick(&mut self) {
        let now = self.clock.now();
        for watched in [&mut self.incarnations, &mut self.fleet] {
            if let Err(error) = watched.ensure(&*self.bus, now).await {
                warn!(%error, "watch failed");
            }
        }
        // Only then: what has ended must be known before what it said is read.
        if self.incarnations.has_caught_up() && self.fleet.has_caught_up() {
            self.open_partitions(now).await;
        } else {
            self.health
                .waiting("the tables of the fleet have not been read");
        }
        if LOOK_AFTER <= now.since(self.looks.asked_at) && self.looks.asking.is_empty() {
            self.looks.asked_at = now;
            let bus = self.bus.clone();
            let shard = self.partitions.shard();
            self.looks
                .asking
                .spawn(async move { (now, partitions::tails(&*bus, shard).await) });
            self.writer.report();
        }
        if TIDY_AFTER <= now.since(self.looks.tidied_at) {
            self.looks.tidied_at = now;
            self.writer.tidy();
        }
        self.writer.resyncs.call_due(now);
        self.check_goal();
    }

    async fn open_partitions(&mut self, now: Timestamp) {
        for partition in self.partitions.to_open(now) {
            match self.partitions.open(&*self.bus, partition, now).await {
                Ok(Opened::Continued) => debug!(partition, "reading the log"),
                Ok(Opened::Lost) => {
                    warn!(
                        partition,
                        "records were lost or the log began anew; resynchronising"
                    );
                    self.writer.lose(partition);
                }
                Err(error) => {
                    let error = self.log_fails(&error);
                    warn!(partition, error, "open the log");
                }
            }
        }
    }

    fn looked(&mut self, looked: Result<Look, JoinError>) {
        match looked {
            Ok((at, Ok(tails))) => {
                for (partition, tail) in &tails {
                    if self.partitions.is_another(*partition, tail) {
                        self.partitions.reopen(*partition);
                        self.looks.goal = None;
                    }
                }
                // An older goal is nearer, so it is kept until it is reached.
                self.looks.goal.get_or_insert((at, tails));
                self.check_goal();
            }
            Ok((_, Err(error))) => {
                let error = self.log_fails(&error);
                debug!(error, "ask for the tails of the log");
            }
            Err(error) => warn!(%error, "asking for the tails of the log broke off"),
        }
    }

    /// Says that the log cannot be opened, and answers why.
    fn log_fails(&self, error: &BusError) -> String {
        let error = error_chain(error);
        let why = format!(
            "the log {} cannot be opened: {error}",
            topics::KV_EVENTS.name
        );
        if !self.looks.was_level {
            self.health.waiting(why.clone());
        }
        self.health.finds(vec![why]);
        error
    }

    /// The index is level with the log as of when it was asked how long it is, once it has come so far.
    fn check_goal(&mut self) {
        let Some((at, tails)) = &self.looks.goal else {
            return;
        };
        let reached =
            |(partition, tail): &&(u32, Tail)| self.partitions.has_reached(*partition, tail);
        let behind = tails.iter().filter(|it| !reached(it)).count();
        if behind == 0 {
            self.answers.level(*at);
            self.health.ready();
            if self.partitions.all_open() {
                self.health.finds(Vec::new());
            }
            self.looks.was_level = true;
            self.looks.goal = None;
        } else if !self.looks.was_level {
            self.health.waiting(format!(
                "{behind} partitions of the log are still to be read"
            ));
        }
    }

    fn save_if_due(&mut self) {
        let now = self.clock.now();
        if !self.saving.is_on() {
            self.saving.begin_if_due(now);
            if SAVE_OPS <= self.writer.unsaved_ops() {
                drop(self.writer.gather());
            }
            return;
        }
        if !self.saving.is_idle() {
            return;
        }
        let waited = now.since(self.saving.last_save());
        let many = SAVE_OPS <= self.writer.unsaved_ops();
        if SAVE_AFTER <= waited || many || self.saving.has_bases() || self.base_is_due() {
            self.save(now);
        }
    }

    /// A base begins with a save.
    fn base_is_due(&self) -> bool {
        let unstored = || !self.saving.is_complete() && self.writer.unstored().is_some();
        self.saving.may_write_base() && (unstored() || self.saving.due().is_some())
    }

    fn save(&mut self, now: Timestamp) {
        let mut changes = self.writer.gather();
        // Without this one the log may be read on only where it was.
        let unstored = self.writer.unstored();
        changes.complete = unstored.is_none() && self.saving.may_complete();
        let writer = &self.writer;
        let held_since = |partition| writer.held_since(partition);
        changes.cursors = match (self.saving.is_complete(), changes.complete) {
            (true, _) => self.partitions.changed(held_since),
            (false, true) => Some(self.partitions.cursors(held_since)),
            (false, false) => None,
        };
        if self.saving.may_write_base()
            && let Some(number) = unstored.or(self.saving.due())
            && let Some((rank, snapshot)) = self.writer.base(number)
        {
            self.saving.write_base(number, rank, snapshot, &changes);
        }
        let first = changes.complete && !self.saving.is_complete();
        if first || self.saving.has_bases() || !changes.is_empty() {
            self.saving.save(changes, now);
        }
    }

    async fn stop(mut self) {
        self.saving.stop();
        self.finish_work().await;
        if self.saving.is_idle() {
            self.save(self.clock.now());
            self.finish_work().await;
        }
        info!("stopped");
    }

    async fn finish_work(&mut self) {
        while self.saving.is_at_work() {
            let done = self.saving.done().await;
            self.note_saving(done);
        }
    }

    fn note_saving(&mut self, done: Result<Done, JoinError>) {
        if self.saving.note(done, self.clock.now()) == Then::SaveAll {
            self.writer.forget_store();
        }
    }
}
