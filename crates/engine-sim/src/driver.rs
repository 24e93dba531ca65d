//! The task that owns the model: takes requests, lets passes end when their time has come, and tells what
//! they brought about to the requests and to the event publishers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{DpRank, SequenceHash, Timestamp, Tokens};
use engine_model::{
    ConversationRouter, Effect, Engine, Pass, RankStatus, Refused, Request, RequestId,
};
use service_kit::CancellationToken;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::announcer::Announcer;
use crate::conversations;
use crate::gathered::{self, Gathered};
use crate::journal::{Journal, Served};
use crate::metrics::RankCounters;
use crate::ranks::Ranks;

/// Commands that wait for the driver. Handlers wait with theirs when it is full, so it only smooths bursts.
const COMMAND_QUEUE: usize = 1024;
/// How far, in real time, the model may lag behind the clock and still catch up. Beyond it, the machine is
/// too slow for the passes asked of it, and the engine is slower than configured.
const MAX_LAG: Duration = Duration::from_millis(250);
/// Passes that may end in one go before commands are looked at again.
const PASSES_PER_TURN: u32 = 64;

/// One request as the HTTP side prepares it.
#[derive(Debug)]
pub(crate) struct Job {
    /// The prompt and the answer.
    pub(crate) tokens: Arc<[u32]>,
    /// How many of them are the prompt.
    pub(crate) isl: usize,
    /// The hashes of their full blocks.
    pub(crate) chain: Arc<[SequenceHash]>,
    /// Where those are pages, the blocks they gather into, each behind its last page.
    pub(crate) gathered: Vec<(SequenceHash, SequenceHash)>,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) session: Option<Arc<str>>,
    /// The model's rank that must run it; without one the engine balances.
    pub(crate) rank: Option<DpRank>,
    /// What an engine that keeps conversations knows it by.
    pub(crate) conversation: Option<Arc<str>>,
    /// Its client's name for it.
    pub(crate) name: Option<Arc<str>>,
}

/// A request that waits for its turn.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The rank that runs it, numbered as in the deployment.
    pub(crate) rank: DpRank,
    pub(crate) progress: watch::Receiver<Progress>,
}

/// How far a request is. Dropping the receiver aborts the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Input tokens taken from the cache, once it has begun.
    pub(crate) cached: Option<Tokens>,
    /// Output tokens generated.
    pub(crate) generated: usize,
}

/// What one rank is doing and what it holds.
#[derive(Clone, Debug)]
pub(crate) struct RankReport {
    pub(crate) rank: DpRank,
    pub(crate) status: RankStatus,
    pub(crate) counters: RankCounters,
}

/// The engine has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped")]
pub(crate) struct Stopped;

#[derive(Debug)]
enum Command {
    Submit(Job, oneshot::Sender<Result<Accepted, Refused>>),
    Reset(oneshot::Sender<Vec<DpRank>>),
    Report(oneshot::Sender<Vec<RankReport>>),
    Held(oneshot::Sender<BTreeMap<DpRank, Vec<SequenceHash>>>),
    Served(oneshot::Sender<Vec<Served>>),
}

/// Asks the driver. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct DriverHandle {
    commands: mpsc::Sender<Command>,
}

impl DriverHandle {
    /// Queues a request.
    pub(crate) async fn submit(&self, job: Job) -> Result<Result<Accepted, Refused>, Stopped> {
        self.ask(|answer| Command::Submit(job, answer)).await
    }

    /// Empties the caches of all ranks but those in use, which are returned.
    pub(crate) async fn reset(&self) -> Result<Vec<DpRank>, Stopped> {
        self.ask(Command::Reset).await
    }

    /// What each rank is doing.
    pub(crate) async fn report(&self) -> Result<Vec<RankReport>, Stopped> {
        self.ask(Command::Report).await
    }

    /// What each rank's cache holds.
    pub(crate) async fn held(&self) -> Result<BTreeMap<DpRank, Vec<SequenceHash>>, Stopped> {
        self.ask(Command::Held).await
    }

    /// The last requests served, oldest first.
    pub(crate) async fn served(&self) -> Result<Vec<Served>, Stopped> {
        self.ask(Command::Served).await
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        self.commands
            .send(command(answer))
            .await
            .map_err(|_| Stopped)?;
        answered.await.map_err(|_| Stopped)
    }
}

/// A request that is waiting or running.
#[derive(Debug)]
struct Live {
    job: Job,
    rank: DpRank,
    progress: watch::Sender<Progress>,
}

impl Live {
    /// What is remembered of it.
    fn served(self, ranks: Ranks) -> Served {
        Served {
            name: self.job.name,
            rank: ranks.global(self.rank),
            asked: self.job.rank.map(|it| ranks.global(it)),
            isl: Tokens::new(self.job.isl as u64),
            cached: self.progress.borrow().cached.unwrap_or_default(),
        }
    }
}

/// Owns the model.
pub(crate) struct Driver {
    engine: Engine,
    pass: Option<Pass>,
    live: BTreeMap<RequestId, Live>,
    next_id: u64,
    counters: Vec<RankCounters>,
    journal: Journal,
    gathered: Gathered,
    commands: mpsc::Receiver<Command>,
    announcer: Announcer,
    /// Where it keeps conversations.
    conversations: Option<ConversationRouter>,
    /// After how many finished requests it forgets everything; none once it has.
    restart_after: Option<u64>,
    start: Instant,
    speed_up: f64,
}

impl Driver {
    /// A driver of `engine`, `speed_up` times as fast as real time.
    pub(crate) fn new(
        engine: Engine,
        speed_up: f64,
        restart_after: Option<u64>,
        announcer: Announcer,
        conversations: Option<ConversationRouter>,
    ) -> (Self, DriverHandle) {
        let (sender, commands) = mpsc::channel(COMMAND_QUEUE);
        let driver = Self {
            counters: engine.ranks().map(|_| RankCounters::default()).collect(),
            engine,
            pass: None,
            live: BTreeMap::new(),
            next_id: 0,
            journal: Journal::default(),
            gathered: Gathered::default(),
            commands,
            announcer,
            conversations,
            restart_after,
            start: Instant::now(),
            speed_up,
        };
        (driver, DriverHandle { commands: sender })
    }

    /// Drives the model until told to stop. Requests still there then see their progress end early.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let pass_ends = self.pass.map(|pass| self.instant(pass.ends_at));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => return,
                },
                () = tokio::time::sleep_until(pass_ends.unwrap_or(self.start)), if pass_ends.is_some() => {
                    self.end_passes().await;
                }
            }
        }
    }

    async fn obey(&mut self, command: Command) {
        // An asker that has gone needs no answer.
        match command {
            Command::Submit(job, answer) => {
                self.restart_if_due().await;
                let submitted = self.submit(job);
                drop(answer.send(submitted));
                if self.pass.is_none() {
                    self.start_pass(self.now());
                }
            }
            Command::Reset(answer) => {
                let in_use = self.reset().await;
                drop(answer.send(in_use));
            }
            Command::Report(answer) => {
                self.abort_abandoned();
                drop(answer.send(self.report()));
            }
            Command::Held(answer) => {
                let ranks = self.engine.ranks();
                let held = ranks.map(|rank| (self.global(rank), self.held(rank)));
                drop(answer.send(held.collect()));
            }
            Command::Served(answer) => drop(answer.send(self.journal.list())),
        }
    }

    /// What a rank's cache holds: blocks, or those that its pages gather into.
    fn held(&self, rank: DpRank) -> Vec<SequenceHash> {
        let held = self.engine.held(rank);
        match gathered::block_size(self.engine.config().block_size) {
            Some(_) => self.gathered.of(held),
            None => held.collect(),
        }
    }

    /// Remembers the blocks of a request, and forgets those that nobody holds any more before they are many.
    fn gather(&mut self, blocks: &[(SequenceHash, SequenceHash)]) {
        let pages = self.engine.config().kv_blocks as usize;
        let most = 2 * pages.saturating_mul(self.counters.len());
        if self.gathered.len() > most {
            let held = self.engine.ranks().flat_map(|rank| self.engine.held(rank));
            let live = self.live.values().flat_map(|it| &it.job.gathered);
            let needed = held.chain(live.map(|(page, _)| *page));
            self.gathered.keep(needed);
        }
        self.gathered.add(blocks);
    }

    /// Empties all caches but those in use, whose ranks are returned.
    async fn reset(&mut self) -> Vec<DpRank> {
        self.abort_abandoned();
        let mut in_use = Vec::new();
        let mut effects = Vec::new();
        for rank in self.engine.ranks() {
            match self.engine.clear(rank) {
                Ok(effect) => effects.extend(effect),
                Err(refused) => in_use.push(self.global(refused.0)),
            }
        }
        self.announce(&effects).await;
        in_use
    }

    /// Forgets everything without a word, if that is what this engine does and its time has come.
    async fn restart_if_due(&mut self) {
        let finished = || self.counters.iter().map(|it| it.finished).sum::<u64>();
        let due = self.restart_after.is_some_and(|after| finished() >= after);
        if !due || !self.live.is_empty() {
            return;
        }
        self.restart_after = None;
        let ranks = self.announcer.ranks.count;
        self.engine = Engine::new(*self.engine.config(), ranks)
            .expect("an engine of this configuration has been running");
        self.counters.fill(RankCounters::default());
        self.conversations = self.conversations.take().map(|it| it.begun_anew());
        self.announcer.restart().await;
    }

    fn submit(&mut self, job: Job) -> Result<Accepted, Refused> {
        let id = RequestId::new(self.next_id);
        let asked = match &mut self.conversations {
            Some(router) => Some(conversations::place(router, &self.engine, &job)?),
            None => job.rank,
        };
        let rank = self.engine.submit(Request {
            id,
            isl: Tokens::new(job.isl as u64),
            osl: Tokens::new((job.tokens.len() - job.isl) as u64),
            chain: Arc::clone(&job.chain),
            rank: asked,
        })?;
        self.next_id += 1;
        self.gather(&job.gathered);
        let (progress, receiver) = watch::channel(Progress::default());
        let live = Live {
            job,
            rank,
            progress,
        };
        self.live.insert(id, live);
        Ok(Accepted {
            rank: self.global(rank),
            progress: receiver,
        })
    }

    fn report(&self) -> Vec<RankReport> {
        let ranks = self.engine.ranks().zip(&self.counters);
        ranks
            .filter_map(|(rank, counters)| {
                let status = self.engine.status(rank)?;
                Some(RankReport {
                    rank: self.global(rank),
                    status,
                    counters: counters.clone(),
                })
            })
            .collect()
    }

    /// Ends every pass whose time has come and starts the next ones. A pass starts when the one before it
    /// ended, not when the timer fired, so that the timer's grain does not slow the engine.
    async fn end_passes(&mut self) {
        for _ in 0..PASSES_PER_TURN {
            let now = self.now();
            let Some(pass) = self.pass.filter(|pass| pass.ends_at <= now) else {
                return;
            };
            let effects = self.engine.finish_pass();
            self.announce(&effects).await;
            for effect in &effects {
                self.tell(effect);
            }
            self.restart_if_due().await;
            let earliest = now - MAX_LAG.mul_f64(self.speed_up);
            self.start_pass(pass.ends_at.max(earliest));
        }
    }

    fn start_pass(&mut self, now: Timestamp) {
        self.abort_abandoned();
        self.pass = self.engine.next_pass(now);
    }

    /// Aborts requests that nobody listens to any more. Done before each pass is planned and each look at
    /// the engine, which is as good as at once: in between, nobody could use what they hold.
    fn abort_abandoned(&mut self) {
        let engine = &mut self.engine;
        let counters = &mut self.counters;
        self.live.retain(|id, live| {
            let abandoned = live.progress.is_closed();
            if abandoned {
                engine.abort(*id);
                counters[live.rank.get() as usize].aborted += 1;
            }
            !abandoned
        });
    }

    async fn announce(&self, effects: &[Effect]) {
        let job = |id| {
            let live = self.live.get(&id);
            &live
                .expect("a request lives until its Finished is told")
                .job
        };
        self.announcer.announce(effects, job).await;
    }

    fn global(&self, rank: DpRank) -> DpRank {
        self.announcer.ranks.global(rank)
    }

    /// Tells a request what a pass did to it, and counts.
    fn tell(&mut self, effect: &Effect) {
        let (Effect::Cached { id, .. }
        | Effect::Preempted { id }
        | Effect::FirstToken { id }
        | Effect::Token { id }
        | Effect::Finished { id }) = effect
        else {
            return;
        };
        let Some(live) = self.live.get(id) else {
            return;
        };
        let counters = &mut self.counters[live.rank.get() as usize];
        match effect {
            Effect::Cached { tokens, .. } => {
                counters.prompt_tokens += live.job.isl as u64;
                counters.cached_tokens += tokens.get();
                live.progress.send_modify(|it| it.cached = Some(*tokens));
            }
            Effect::Preempted { .. } => counters.preempted += 1,
            Effect::Finished { .. } => {
                counters.finished += 1;
                if let Some(live) = self.live.remove(id) {
                    self.journal.add(live.served(self.announcer.ranks));
                }
            }
            _ => {
                counters.generated_tokens += 1;
                live.progress.send_modify(|it| it.generated += 1);
            }
        }
    }

    /// The model's time: zero at the start, `speed_up` times as fast as the clock.
    fn now(&self) -> Timestamp {
        Timestamp::from_secs_f64(self.start.elapsed().as_secs_f64() * self.speed_up)
    }

    fn instant(&self, time: Timestamp) -> Instant {
        // Rounded up, so that the time has come when the timer fires.
        let micros = (time.as_micros() as f64 / self.speed_up).ceil();
        self.start + Duration::from_micros(micros as u64)
    }
}
