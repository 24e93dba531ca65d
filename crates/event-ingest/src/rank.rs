//! One rank's task: reads what its sockets bring, does what its feed says.

mod start;

use std::collections::VecDeque;

use domain::{DpRank, Epoch, EventSeq, KvOp};
use engine_wire::EventBatch;
use event_feed::{Action, Message, Position, RankFeed};
use service_kit::CancellationToken;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::claims::Refused;
use crate::epoch::{EpochError, Known};
use crate::outbox::{FlushError, Outbox};
use crate::quiet::Quiet;
use crate::recall::{Recall, Recalled};
use crate::replay::{self, Replayed};
use crate::subscriber::Intake;
use crate::translate::Translator;
use crate::warnings::Warnings;

pub(crate) use start::Parts;

/// Inputs taken before what they say is appended, if they wait already.
const BURST: usize = 256;

/// Why a rank's task cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RankError {
    #[error(transparent)]
    Flush(#[from] FlushError),
    #[error("raise the epoch of {worker}")]
    Epoch {
        worker: String,
        #[source]
        source: EpochError,
    },
}

/// A request to publish a rank's messages again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resync {
    pub(crate) dp_rank: DpRank,
    pub(crate) epoch: Epoch,
    pub(crate) from: EventSeq,
}

pub(crate) struct RankTask {
    parts: Parts,
    feed: RankFeed<EventBatch>,
    translator: Translator,
    /// Learning again what a restart has lost of the pages, until the first message is published.
    recall: Option<Recall>,
    /// The first message that the feed wants of the replay.
    asked: EventSeq,
    /// What goes before what the next message says.
    owed: Vec<KvOp>,
    outbox: Outbox,
    epochs: watch::Receiver<Option<Known>>,
    replay: Option<mpsc::Receiver<Replayed>>,
    replays: JoinSet<()>,
    reachable: bool,
    quiet: Quiet,
    warnings: Warnings,
}

/// What wakes the task.
enum Input {
    Epoch(Epoch),
    Resync(Resync),
    Replayed(Replayed),
    Intake(Intake),
    Silence,
}

impl RankTask {
    pub(crate) fn new(parts: Parts) -> Self {
        let rank = parts.endpoint.dp_rank;
        let feed = parts.feed(rank, parts.epoch_now);
        let translator = parts.translator(rank, parts.epoch_now);
        let mut epochs = parts.epoch.subscribe();
        // It may have been raised since `epoch_now` was read.
        epochs.mark_changed();
        Self {
            recall: Recall::of(&feed, &translator),
            asked: EventSeq::new(0),
            owed: Vec::new(),
            feed,
            translator,
            outbox: parts.outbox(rank),
            epochs,
            replay: None,
            replays: JoinSet::new(),
            reachable: false,
            quiet: parts.quiet(Instant::now()),
            warnings: Warnings::default(),
            parts,
        }
    }

    /// Runs until `shutdown`, and returns how far it came.
    pub(crate) async fn run(
        mut self,
        shutdown: CancellationToken,
    ) -> Result<Option<(DpRank, Position)>, RankError> {
        match self.follow(&shutdown).await {
            Ok(()) | Err(RankError::Flush(FlushError::ShuttingDown)) => {}
            Err(error) => return Err(error),
        }
        let rank = self.outbox.dp_rank();
        Ok(self.outbox.reached().map(|position| (rank, position)))
    }

    async fn follow(&mut self, shutdown: &CancellationToken) -> Result<(), RankError> {
        loop {
            let input = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                input = self.next() => input,
            };
            self.take(input, shutdown).await?;
            for _ in 0..BURST {
                let Some(input) = self.next_waiting() else {
                    break;
                };
                self.take(input, shutdown).await?;
                if self.outbox.is_full() {
                    break;
                }
            }
            self.flush(shutdown).await?;
            if self.reachable && self.feed.is_following() {
                self.parts.first_attempt = None;
            }
        }
    }

    async fn next(&mut self) -> Input {
        let silence = self.quiet.due();
        tokio::select! {
            biased;
            Ok(()) = self.epochs.changed() => Input::Epoch(self.epoch_known()),
            Some(resync) = self.parts.resyncs.recv() => Input::Resync(resync),
            replayed = received(&mut self.replay) => Input::Replayed(replayed),
            Some(intake) = self.parts.intake.recv() => Input::Intake(intake),
            () = sleep_until(silence) => Input::Silence,
        }
    }

    /// An input that is there already. Replayed messages come first: live ones are held back meanwhile.
    fn next_waiting(&mut self) -> Option<Input> {
        if let Some(replay) = &mut self.replay
            && let Ok(replayed) = replay.try_recv()
        {
            return Some(Input::Replayed(replayed));
        }
        self.parts.intake.try_recv().ok().map(Input::Intake)
    }

    fn epoch_known(&mut self) -> Epoch {
        let known = *self.epochs.borrow_and_update();
        known.map_or(self.feed.epoch(), |known| known.epoch)
    }

    async fn take(&mut self, input: Input, shutdown: &CancellationToken) -> Result<(), RankError> {
        let actions = match input {
            Input::Epoch(epoch) => {
                // This rank has not shown it itself.
                if self.feed.epoch() < epoch && self.feed.position().is_some() {
                    self.parts.metrics.restart("other_rank");
                }
                self.raised(epoch)
            }
            Input::Resync(resync) if resync.dp_rank == self.outbox.dp_rank() => {
                tracing::info!(target = %self.name(), from = %resync.from, "resync asked");
                self.feed.resync(resync.epoch, resync.from)
            }
            Input::Resync(_) => Vec::new(),
            Input::Replayed(replayed) => self.take_replayed(replayed),
            Input::Intake(intake) => self.take_intake(intake),
            Input::Silence => {
                if self.reachable && self.feed.is_following() {
                    self.quiet.asked(Instant::now());
                    self.feed.verify()
                } else {
                    self.quiet.put_off(Instant::now());
                    Vec::new()
                }
            }
        };
        self.carry_out(actions, shutdown).await
    }

    fn take_replayed(&mut self, replayed: Replayed) -> Vec<Action<EventBatch>> {
        match replayed {
            Replayed::Message(message) => match self.admit(&message) {
                Admitted::Yes => self.replayed(message),
                // The replay begins anew for the rank that the publisher speaks for.
                Admitted::AsAnotherRank => self.feed.verify(),
                Admitted::No => Vec::new(),
            },
            Replayed::End => {
                self.replay = None;
                self.feed.replay_ended()
            }
            Replayed::Failed => {
                self.replay = None;
                self.parts.first_attempt = None;
                self.feed.replay_failed()
            }
        }
    }

    fn replayed(&mut self, message: Message<EventBatch>) -> Vec<Action<EventBatch>> {
        match self.recall.take().map(|recall| recall.take(&message)) {
            Some(Recalled::Going(recall)) => self.recall = Some(recall),
            Some(Recalled::Done(translator)) => {
                let before = std::mem::replace(&mut self.translator, translator);
                self.owed = self.translator.succeed(&before);
                tracing::info!(target = %self.name(), "the pages are known again");
            }
            Some(Recalled::Impossible) => {
                self.parts.metrics.event("pages_not_recalled");
                tracing::info!(target = %self.name(), "blocks that were not whole are lost");
            }
            None => {}
        }
        if message.seq < self.asked {
            return Vec::new();
        }
        self.feed.replayed(message)
    }

    fn take_intake(&mut self, intake: Intake) -> Vec<Action<EventBatch>> {
        match intake {
            Intake::Connected => {
                self.reachable = true;
                self.parts.finding.is_well();
                self.feed.verify()
            }
            Intake::Unreachable => {
                self.reachable = false;
                self.parts.finding.is("not reached");
                self.parts.first_attempt = None;
                Vec::new()
            }
            Intake::Lost => self.feed.verify(),
            Intake::Message(message) => match self.admit(&message) {
                Admitted::Yes => self.feed.live(message),
                Admitted::AsAnotherRank => {
                    let mut actions = self.feed.verify();
                    actions.extend(self.feed.live(message));
                    actions
                }
                Admitted::No => Vec::new(),
            },
        }
    }

    /// Whether a message may be taken for this rank's. The rank that a message names counts for more than
    /// the one its socket was registered for.
    fn admit(&mut self, message: &Message<EventBatch>) -> Admitted {
        let own = self.outbox.dp_rank();
        let named = message.payload.dp_rank.unwrap_or(own);
        match self.parts.claims.claim(self.parts.socket, named) {
            Ok(()) if named == own => Admitted::Yes,
            Ok(()) => {
                tracing::info!(registered = %own, %named, "the publisher speaks for another rank");
                self.translator = self.parts.translator(named, self.feed.epoch());
                self.feed = self.parts.feed(named, self.feed.epoch());
                self.recall = Recall::of(&self.feed, &self.translator);
                self.outbox = self.parts.outbox(named);
                Admitted::AsAnotherRank
            }
            Err(refused) => {
                self.refuse(named, refused);
                Admitted::No
            }
        }
    }

    fn refuse(&mut self, named: DpRank, why: Refused) {
        self.parts.metrics.event(why.label());
        self.parts
            .finding
            .is(format!("it speaks for rank {named}: {why}"));
        if self.warnings.is_due(why.label()) {
            let endpoint = &self.parts.endpoint.publish;
            tracing::warn!(target = %self.name(), endpoint, %named, %why, "message refused");
        }
    }

    fn raised(&mut self, epoch: Epoch) -> Vec<Action<EventBatch>> {
        if self.feed.epoch() < epoch {
            self.replay = None;
            self.translator.reset();
            self.recall = None;
            self.owed.clear();
        }
        self.feed.epoch_raised(epoch)
    }

    async fn carry_out(
        &mut self,
        actions: Vec<Action<EventBatch>>,
        shutdown: &CancellationToken,
    ) -> Result<(), RankError> {
        let mut todo = VecDeque::from(actions);
        while let Some(action) = todo.pop_front() {
            match action {
                Action::Deliver { epoch, message } => self.deliver(epoch, &message),
                Action::Reset { position, reason } => {
                    tracing::warn!(target = %self.name(), seq = %position.seq, ?reason, "rank reset");
                    self.parts.metrics.event("reset");
                    self.translator.forget_pages();
                    self.recall = None;
                    self.owed.clear();
                    self.outbox.add(position, vec![KvOp::Reset { reason }]);
                }
                Action::AskReplay { from, attempt } => self.ask(from, attempt),
                Action::RaiseEpoch { above, cause } => {
                    tracing::warn!(target = %self.name(), cause = cause.name(), "the engine restarted");
                    self.parts.metrics.restart(cause.name());
                    // What was published in this epoch goes out before the next begins.
                    self.flush(shutdown).await?;
                    let epoch = self.raise(above, shutdown).await?;
                    todo.extend(self.raised(epoch));
                }
                Action::Gap { expected, found } => {
                    self.parts.metrics.gap();
                    if self.warnings.is_due("gap") {
                        tracing::warn!(target = %self.name(), %expected, %found, "gap");
                    }
                }
                Action::Drop { cause, .. } => self.parts.metrics.event(cause.name()),
            }
        }
        Ok(())
    }

    fn deliver(&mut self, epoch: Epoch, message: &Message<EventBatch>) {
        self.recall = None;
        self.quiet.heard(Instant::now());
        let translated = self.translator.translate(message.seq, &message.payload);
        let mut ops = std::mem::take(&mut self.owed);
        ops.extend(translated.ops);
        let metrics = &self.parts.metrics;
        metrics.event("published");
        for (reason, count) in translated.skipped {
            metrics.events(reason, count);
        }
        for (result, count) in translated.pages {
            metrics.pages(result, count);
        }
        let position = Position {
            epoch,
            seq: message.seq,
            engine_ts: message.engine_ts,
        };
        self.outbox.add(position, ops);
    }

    fn ask(&mut self, from: EventSeq, attempt: u32) {
        // One replay at a time: what an earlier one still brings is not wanted.
        self.replays.abort_all();
        while self.replays.try_join_next().is_some() {}
        let (sender, receiver) = mpsc::channel(replay::QUEUE);
        self.replay = Some(receiver);
        self.asked = from;
        // Only once: what is needed is more than what is missed for want of it.
        self.recall = self.recall.take().filter(|_| attempt == 1);
        let from = if self.recall.is_some() {
            self.recall = Recall::of(&self.feed, &self.translator);
            EventSeq::new(0)
        } else {
            from
        };
        if let Some(endpoint) = self.parts.endpoint.replay.clone() {
            let request = replay::Request {
                endpoint,
                from,
                attempt,
                patience: self.parts.config.replay_timeout(),
            };
            let fetching = replay::fetch(request, sender, self.parts.metrics.clone());
            self.replays.spawn(fetching);
        }
    }

    async fn raise(&self, above: Epoch, shutdown: &CancellationToken) -> Result<Epoch, RankError> {
        let why = format!("rank {} restarted", self.outbox.dp_rank());
        loop {
            match self.parts.epoch.raise(above, &why).await {
                Ok(epoch) => return Ok(epoch),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(target = %self.name(), %error, "trying again");
                }
                Err(source) => {
                    return Err(RankError::Epoch {
                        worker: self.parts.worker.id.to_string(),
                        source,
                    });
                }
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Err(FlushError::ShuttingDown.into()),
                () = sleep(crate::epoch::RETRY) => {}
            }
        }
    }

    async fn flush(&mut self, shutdown: &CancellationToken) -> Result<(), RankError> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let (reached, pages) = (self.feed.position(), self.translator.changes());
        Ok(self.outbox.flush(reached, pages, shutdown).await?)
    }

    fn name(&self) -> domain::Target {
        domain::Target {
            worker: self.parts.worker.id.clone(),
            epoch: self.feed.epoch(),
            dp_rank: self.outbox.dp_rank(),
        }
    }
}

/// Whether a message is one of this task's rank.
enum Admitted {
    Yes,
    /// It is, now that the task has become another rank's.
    AsAnotherRank,
    No,
}

/// The next of what the replay brings; a replay that ended without a word has failed. Waits for ever when
/// none runs.
async fn received(replay: &mut Option<mpsc::Receiver<Replayed>>) -> Replayed {
    match replay {
        Some(replay) => replay.recv().await.unwrap_or(Replayed::Failed),
        None => std::future::pending().await,
    }
}
