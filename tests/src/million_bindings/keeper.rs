//! The process that keeps the bindings, and is killed: a store over a bus in a folder, and callers beside it.

use std::convert::Infallible;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use affinity::{ConversationKey, Evidence, Owner, TurnEnd};
use affinity_store::{AffinityStore, Config};
use anyhow::{Context as _, bail};
use bus_local::LocalBus;
use clap::Args;
use contracts::rpc::{Acquire, Affinity, CallError, Confirm, Release};
use contracts::topics;
use domain::{InstanceId, Target, Tokens};
use serde::Serialize;
use service_kit::{Clock, Context, Ended, Health, Process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::told::{Found, Quantiles, Span, Tell, Turns};
use crate::world::Interrupted;

/// How many callers wait for answers at once.
pub(super) const CALLERS: u64 = 16;
/// How long a call may take. It is measured, not judged: on a machine that does other work it takes long.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often it is asked whether the store answers.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// Keeps bindings for another scenario, until it is killed.
#[derive(Args)]
pub(crate) struct Options {
    /// Where its bus and its secret lie.
    #[arg(long)]
    folder: PathBuf,
    /// How many bindings there may be.
    #[arg(long)]
    capacity: usize,
}

/// Serves what standard input says, until the process is killed: that there is no more is an error.
pub(crate) async fn keep(options: Options) -> anyhow::Result<Infallible> {
    let process = Process::default();
    let bus = LocalBus::open(&options.folder.join("bus"), &topics::LAYOUT).await?;
    let context = Context {
        registry: prometheus::Registry::new(),
        health: Health::default(),
        clock: Clock::system(),
    };
    let config = Config {
        data_dir: options.folder,
        capacity: options.capacity,
        decision_deadline_ms: u64::try_from(DEADLINE.as_millis())?,
        ..Config::default()
    };
    let store = AffinityStore::new(config, Arc::new(bus), context.clone())?;
    let callers = Callers {
        store: store.affinity(),
        registry: context.registry,
        errors: AtomicU64::new(0),
    };
    process.spawn("affinity-store", store.run(process.shutdown()));
    let serving = async {
        while callers.store.get(&conversation(0)).await.is_err() {
            sleep(ASK_EVERY).await;
        }
        say(&resident()?)?;
        callers.serve().await
    };
    match process.run_until(serving).await? {
        Ended::Done(never) => match never {},
        Ended::Signal => Err(Interrupted.into()),
    }
}

/// Whoever asks the store.
struct Callers {
    store: Arc<dyn Affinity>,
    registry: prometheus::Registry,
    errors: AtomicU64,
}

impl Callers {
    async fn serve(self) -> anyhow::Result<Infallible> {
        let callers = Arc::new(self);
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = lines.next_line().await.context("read what to do")? {
            match serde_json::from_str(&line).context("understand what to do")? {
                Tell::Turns(span) => say(&callers.clone().turns(span).await?)?,
                Tell::TurnsUntilKilled(from) => callers.clone().turns_until_killed(from).await?,
                Tell::Find(numbers) => say(&callers.find(numbers).await)?,
            }
        }
        bail!("nobody says what to do any more")
    }

    async fn turns(self: Arc<Self>, span: Span) -> anyhow::Result<Turns> {
        let began = Instant::now();
        let next = Arc::new(AtomicU64::new(span.from));
        let errors_before = self.errors.load(Ordering::Relaxed);
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (all, next) = (self.clone(), next.clone());
            callers.spawn(async move {
                let mut times = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if span.to <= number {
                        return times;
                    }
                    times.extend(all.acquire(number).await);
                    all.finish(number).await;
                }
            });
        }
        let times = callers.join_all().await.concat();
        Ok(Turns {
            seconds: began.elapsed().as_secs_f64(),
            acquire_us: Quantiles::of(times),
            errors: self.errors.load(Ordering::Relaxed) - errors_before,
            resident: resident()?,
            displaced: self.displaced(),
        })
    }

    async fn turns_until_killed(self: Arc<Self>, from: u64) -> anyhow::Result<()> {
        let next = Arc::new(AtomicU64::new(from));
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            callers.spawn(self.clone().bind_for_ever(next.clone()));
        }
        let ended = callers.join_next().await;
        ended.context("nobody calls")?.context("join a caller")?
    }

    async fn bind_for_ever(self: Arc<Self>, next: Arc<AtomicU64>) -> anyhow::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            self.acquire(number).await.context("bind a conversation")?;
            if number.is_multiple_of(2) {
                self.finish(number).await;
            }
            say(&number)?;
        }
    }

    async fn find(&self, numbers: Vec<u64>) -> Found {
        let mut found = Found {
            lost: Vec::new(),
            moved: 0,
            errors: 0,
        };
        for number in numbers {
            match self.store.get(&conversation(number)).await {
                Ok(Some(bound)) => found.moved += u64::from(bound.binding.target != target(number)),
                Ok(None) => found.lost.push(number),
                Err(_) => found.errors += 1,
            }
        }
        found
    }

    /// Binds it, or follows the binding it has; how long that took, if it was done.
    async fn acquire(&self, number: u64) -> Option<Duration> {
        let request = Acquire {
            key: conversation(number),
            proposed: target(number),
            owner: Owner::Router,
            actor: router(number),
        };
        let began = Instant::now();
        let done = self.store.acquire(request).await;
        self.note(done).map(|_| began.elapsed())
    }

    /// Serves the turn that has acquired it.
    async fn finish(&self, number: u64) {
        let confirm = Confirm {
            key: conversation(number),
            asked: target(number),
            observed: target(number),
            evidence: Evidence::Asked,
            actor: router(number),
        };
        let release = Release {
            key: conversation(number),
            target: target(number),
            end: TurnEnd::Served {
                held: Tokens::new(4_096),
            },
            actor: router(number),
        };
        self.note(self.store.confirm(confirm).await);
        self.note(self.store.release(release).await);
    }

    fn note<T>(&self, result: Result<T, CallError>) -> Option<T> {
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        result.ok()
    }

    fn displaced(&self) -> u64 {
        let families = self.registry.gather();
        let named =
            |it: &&prometheus::proto::MetricFamily| it.name() == "rankway_bindings_displaced_total";
        let family = families.iter().find(named);
        let metric = family.and_then(|it| it.get_metric().first());
        // A counter counts whole things.
        metric.map_or(0, |it| it.get_counter().get_value() as u64)
    }
}

/// A conversation as long-named as those of agents are.
fn conversation(number: u64) -> ConversationKey {
    let id = format!("{number:08x}-5f2e-4c1b-9a70-{number:012x}");
    ConversationKey {
        tenant: "default".parse().expect("a word is an id"),
        model: "scenario-model".parse().expect("a word is an id"),
        conversation: id.parse().expect("a short printable text is an id"),
    }
}

/// Where it is bound: at one of 24 ranks.
fn target(number: u64) -> Target {
    let text = format!(
        "worker-{}.ranks.internal:8000#1/{}",
        number % 3,
        number / 3 % 8
    );
    text.parse().expect("it has the form of a target")
}

/// Which router has its turns.
fn router(number: u64) -> InstanceId {
    let name = format!("router-{}", number % 4);
    name.parse().expect("a short plain name is an id")
}

/// Bytes of memory that this process has resident.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read the memory in use")?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|it| it.trim().strip_suffix(" kB"));
    let kilobytes: u64 = kilobytes
        .context("the memory in use is not said")?
        .parse()?;
    Ok(kilobytes * 1024)
}

/// Writes a line, at once: what is said after it has been done is what the other side may rely on.
fn say(answer: &impl Serialize) -> anyhow::Result<()> {
    let line = serde_json::to_string(answer)? + "\n";
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).context("answer")?;
    out.flush().context("answer")
}
