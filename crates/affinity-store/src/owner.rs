//! The one task that owns all bindings: it takes asks one at a time for each conversation, and conversations
//! side by side, so that none waits for another's write.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use affinity::{BindingKey, Outcome, Standing, Terms, Write};
use anyhow::Context as _;
use bus::{Bus, Change, Entry, Revision};
use contracts::rpc::CallError;
use futures::StreamExt as _;
use service_kit::{CancellationToken, Clock, Component, error_chain};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::ask::{Ask, Message, SERVICE, not_bound};
use crate::metrics::Metrics;
use crate::names::Names;
use crate::slots::{Seen, Slots};
use crate::table::{self, Done, Step, Work};

/// Reads and writes under way at once; more would only queue in the bus.
const MAX_JOBS: usize = 4_096;
/// Asks that wait for one under way, over all conversations. Beyond it the queue is left to fill.
const MAX_WAITING: usize = 65_536;
/// How often an ask is tried again on what another writer left, before it fails.
const MAX_READS: u32 = 8;
/// How long writes under way may take once the store shall stop.
const STOP_WITHIN: Duration = Duration::from_secs(5);

pub(crate) struct Owner {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) terms: Terms,
    pub(crate) clock: Clock,
    pub(crate) slots: Slots,
    pub(crate) metrics: Metrics,
    pub(crate) names: Names,
    pub(crate) health: Component,
    pub(crate) jobs: JoinSet<Done>,
    pub(crate) waiting: usize,
    pub(crate) phase: Phase,
    pub(crate) bus_state: BusState,
}

/// How far the watch has come.
pub(crate) enum Phase {
    /// The table is being read for the first time; nothing is answered yet.
    Loading,
    /// It is being read again after a break: these entries have not been seen again.
    Reloading(BTreeSet<BindingKey>),
    /// Changes come as they happen.
    Following,
}

/// What the last read or write came to.
#[derive(PartialEq, Eq)]
pub(crate) enum BusState {
    Works,
    Fails,
}

/// Whether an ask is still under way.
#[derive(PartialEq, Eq)]
enum Progress {
    Started,
    Finished,
}

impl Owner {
    pub(crate) async fn run(
        mut self,
        mut queue: mpsc::Receiver<Message>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut steps = table::follow(self.bus.clone());
        self.health.waiting("reading the bindings");
        loop {
            self.make_room();
            let has_room = self.jobs.len() < MAX_JOBS && self.waiting < MAX_WAITING;
            let answers = has_room && !matches!(self.phase, Phase::Loading);
            let due_in = self.slots.next_due().map(|due| due.since(self.clock.now()));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = self.jobs.join_next() => {
                    self.finish(done.context("read or write a binding")?);
                }
                Some(step) = steps.next(), if has_room => self.follow(step),
                () = sleep(due_in.unwrap_or_default()), if answers && due_in.is_some() => {
                    self.look_at_due();
                }
                Some(message) = queue.recv(), if answers => self.take(message),
            }
        }
        let all = async {
            while let Some(done) = self.jobs.join_next().await {
                self.finish(done.context("read or write a binding")?);
            }
            anyhow::Ok(())
        };
        match timeout(STOP_WITHIN, all).await {
            Ok(finished) => finished,
            Err(_) => {
                warn!("stopped before all bindings were written");
                Ok(())
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::One(key, mut ask) => {
                self.names.share_asked(&mut ask);
                self.submit(key, ask);
            }
            Message::Renew { actor, keys, reply } => {
                for key in keys {
                    if self.slots.may_exist(key) {
                        self.submit(key, Ask::Renew(actor.clone()));
                    }
                }
                // A router that does not wait renews again.
                let _ = reply.send(Ok(()));
            }
            Message::List { limit, reply } => {
                // Whoever asked and left needs no answer.
                let _ = reply.send(Ok(self.slots.list(limit, self.clock.now())));
            }
            Message::Search { search, reply } => {
                // As above.
                let _ = reply.send(Ok(self.slots.search(&search, self.clock.now())));
            }
        }
    }

    /// Ends idle bindings beyond the bound, once all of the table is known.
    fn make_room(&mut self) {
        let now = self.clock.now();
        while matches!(self.phase, Phase::Following)
            && self.jobs.len() < MAX_JOBS
            && let Some(key) = self.slots.pop_idle(now)
        {
            self.submit(key, Ask::MakeRoom);
        }
    }

    fn look_at_due(&mut self) {
        let now = self.clock.now();
        while self.jobs.len() < MAX_JOBS
            && let Some(key) = self.slots.pop_due(now)
        {
            self.submit(key, Ask::Lapse);
        }
    }

    fn follow(&mut self, step: Step) {
        match step {
            Step::Began => match self.phase {
                Phase::Loading => self.slots.clear(),
                Phase::Following | Phase::Reloading(_) => {
                    self.health.waiting("reading the bindings again");
                    self.phase = Phase::Reloading(self.slots.known());
                }
            },
            Step::Change(Change::CaughtUp) => self.caught_up(),
            Step::Change(Change::Put(key, entry)) => {
                let Some(key) = table::binding_key(&key) else {
                    return self.unreadable(&"a key of another length");
                };
                match &mut self.phase {
                    Phase::Loading => return self.load(key, &entry),
                    Phase::Reloading(unseen) => {
                        unseen.remove(&key);
                    }
                    Phase::Following => {}
                }
                self.compare(key, entry.revision);
            }
            Step::Change(Change::Deleted(key)) => {
                if let Some(key) = table::binding_key(&key)
                    && matches!(self.slots.seen(key), Seen::At(_))
                {
                    self.submit(key, Ask::Refresh(None));
                }
            }
        }
    }

    fn caught_up(&mut self) {
        let unseen = match std::mem::replace(&mut self.phase, Phase::Following) {
            Phase::Reloading(unseen) => unseen,
            Phase::Loading | Phase::Following => BTreeSet::new(),
        };
        for key in unseen {
            self.submit(key, Ask::Refresh(None));
        }
        info!("caught up with the bindings");
        self.health.ready();
    }

    /// Takes an entry of the table as it was when this process began.
    fn load(&mut self, key: BindingKey, entry: &Entry) {
        let now = self.clock.now();
        let binding = self.decode(entry);
        let standing = Standing::found(binding, now, &self.terms);
        let seen = Seen::At(entry.revision);
        self.slots.install(key, standing, seen, now);
    }

    /// Most changes are this store's own writes coming back. Another's are read, not believed: the watch may
    /// be behind what has been written since.
    fn compare(&mut self, key: BindingKey, revision: Revision) {
        let is_news = match self.slots.seen(key) {
            Seen::At(known) => known < revision,
            // One that is not in memory will be read when it is needed.
            Seen::Unread | Seen::Absent => !self.slots.may_exist(key),
        };
        if is_news {
            self.submit(key, Ask::Refresh(Some(revision)));
        }
    }

    fn submit(&mut self, key: BindingKey, ask: Ask) {
        match self.slots.begin(key, ask) {
            Some(ask) => {
                if self.proceed(key, Work { ask, reads: 0 }) == Progress::Finished {
                    self.go_on(key);
                }
            }
            None => self.waiting += 1,
        }
    }

    /// Takes what waits for a conversation until something is under way again.
    fn go_on(&mut self, key: BindingKey) {
        while let Some(ask) = self.slots.next(key) {
            self.waiting -= 1;
            if self.proceed(key, Work { ask, reads: 0 }) == Progress::Started {
                return;
            }
        }
    }

    fn finish(&mut self, done: Done) {
        let now = self.clock.now();
        let (key, progress) = match done {
            Done::Read(key, work, entry) => {
                self.bus_works();
                let binding = entry.as_ref().and_then(|entry| self.decode(entry));
                let seen = entry.map_or(Seen::Absent, |entry| Seen::At(entry.revision));
                let standing = self.slots.standing(key).reread(binding, now, &self.terms);
                self.slots.install(key, standing, seen, now);
                (key, self.proceed(key, work))
            }
            Done::Wrote {
                key,
                ask,
                next,
                outcome,
                seen,
            } => {
                self.bus_works();
                self.settle(key, ask, *next, outcome, seen);
                (key, Progress::Finished)
            }
            Done::Failed(key, work, error) => {
                // It may have been written all the same.
                self.slots.doubt(key, now + self.terms.lease);
                self.bus_failed(&error);
                work.ask.fail(unavailable(&error));
                (key, Progress::Finished)
            }
        };
        if progress == Progress::Finished {
            self.go_on(key);
        }
    }

    /// Does what can be done about an ask without waiting, and starts what cannot.
    fn proceed(&mut self, key: BindingKey, work: Work) -> Progress {
        if work.ask.is_abandoned() {
            self.metrics.abandoned.inc();
            return Progress::Finished;
        }
        let seen = self.slots.seen(key);
        let must_read = match (&work.ask, seen) {
            (Ask::Refresh(wanted), Seen::At(known)) => {
                work.reads == 0 && wanted.is_none_or(|wanted| known < wanted)
            }
            (Ask::Refresh(_), _) => work.reads == 0,
            // Most conversations that are not known are new: the write itself finds out.
            (Ask::Acquire(..), Seen::Unread) => self.slots.may_exist(key),
            (_, Seen::Unread) => true,
            (_, Seen::Absent | Seen::At(_)) => false,
        };
        if must_read {
            self.jobs.spawn(table::read(self.bus.clone(), key, work));
            return Progress::Started;
        }
        self.apply(key, work, seen)
    }

    fn apply(&mut self, key: BindingKey, work: Work, seen: Seen) -> Progress {
        let now = self.clock.now();
        if MAX_READS < work.reads {
            work.ask.fail(CallError::Unavailable {
                service: SERVICE,
                why: "another writer keeps changing the binding".to_owned(),
            });
            return Progress::Finished;
        }
        if let Ask::Rebind(request, _) = &work.ask
            && seen != Seen::At(request.at)
        {
            let why = format!("the binding is no longer at revision {}", request.at.0);
            work.ask.fail(CallError::FailedPrecondition { why });
            return Progress::Finished;
        }
        let Some(event) = work.ask.event() else {
            self.answer(key, work.ask);
            return Progress::Finished;
        };
        match self.slots.standing(key).apply(&event, now, &self.terms) {
            Err(_) => work.ask.fail(not_bound()),
            Ok(transition) if transition.write == Write::Nothing => {
                let (next, outcome) = (transition.next, transition.outcome);
                self.settle(key, work.ask, next, outcome, seen);
            }
            Ok(transition) => {
                let rereads = self.metrics.rereads.clone();
                let bus = self.bus.clone();
                let job = table::write(bus, key, work, transition, seen, rereads);
                self.jobs.spawn(job);
                return Progress::Started;
            }
        }
        Progress::Finished
    }

    fn settle(&mut self, key: BindingKey, ask: Ask, next: Standing, outcome: Outcome, seen: Seen) {
        let now = self.clock.now();
        if matches!(outcome, Outcome::Followed | Outcome::Contradicted)
            && let Some(binding) = next.binding(now, &self.terms)
        {
            self.metrics.conflict(&binding.target.worker);
        }
        self.tell(&ask, outcome);
        self.slots.install(key, next, seen, now);
        self.answer(key, ask);
    }

    fn answer(&mut self, key: BindingKey, ask: Ask) {
        let bound = self.slots.bound(key, self.clock.now());
        if let Some(release) = ask.answer(bound) {
            self.metrics.abandoned.inc();
            let (reply, _) = tokio::sync::oneshot::channel();
            self.submit(key, Ask::Release(release, reply));
        }
    }

    /// What an operator does is said, what the bound does is counted.
    fn tell(&self, ask: &Ask, outcome: Outcome) {
        match ask {
            Ask::Reassign(request, _) => {
                let (conversation, to, actor) =
                    (&request.key.conversation, &request.to, &request.actor);
                info!(%conversation, %to, %actor, "moved by an operator");
            }
            Ask::Unbind(request, _) => {
                let (conversation, actor) = (&request.key.conversation, &request.actor);
                info!(%conversation, %actor, "unbound by an operator");
            }
            _ if outcome == Outcome::MadeRoom => self.metrics.displaced.inc(),
            _ => {}
        }
    }

    /// Says so once, until the bus does its work again.
    fn bus_failed(&mut self, error: &bus::BusError) {
        self.metrics.failures.inc();
        if self.bus_state == BusState::Works {
            warn!(%error, "bindings cannot be read or written");
            let why = error_chain(error);
            self.health
                .finds(vec![format!("bindings cannot be read or written: {why}")]);
            self.bus_state = BusState::Fails;
        }
    }

    fn bus_works(&mut self) {
        if self.bus_state == BusState::Fails {
            info!("bindings can be read and written again");
            self.health.finds(Vec::new());
            self.bus_state = BusState::Works;
        }
    }

    fn decode(&mut self, entry: &Entry) -> Option<affinity::Binding> {
        match table::decode(entry) {
            Ok(mut binding) => {
                self.names.share(&mut binding);
                Some(binding)
            }
            Err(error) => {
                self.unreadable(&error);
                None
            }
        }
    }

    /// Says so at the first, second, fourth, ... of them.
    fn unreadable(&self, error: &dyn std::fmt::Display) {
        self.metrics.unreadable.inc();
        let count = self.metrics.unreadable.get();
        if count.is_power_of_two() {
            warn!(%error, count, "an entry of the table is no binding");
        }
    }
}

fn unavailable(error: &bus::BusError) -> CallError {
    CallError::Unavailable {
        service: SERVICE,
        why: error.to_string(),
    }
}
