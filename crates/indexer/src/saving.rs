//! Keeping the store behind the index: one save at a time and one base at a time, all off the loop.
//!
//! If the store fails, as on a full disk, the index goes on serving from memory and says so in `/readyz`, and a
//! new store is begun beside the failed one, after a pause that grows. Until it has all ranks a restart begins
//! with the failed one, which stands at its last save, from where the log leads on.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use contracts::index_store::{Base, StoredRank};
use domain::Timestamp;
use prefix_index::{PrefixIndex, RankSnapshot};
use service_kit::{Component, error_chain};
use tokio::task::{JoinError, JoinSet};
use tracing::{error, info, warn};

use crate::Config;
use crate::metrics::Metrics;
use crate::store::{
    Changes, Loaded, RankNumber, Store, StoreError, begin_anew, move_aside, write_base,
};

/// How often, and how long apart, a store in use is tried: the process before may be about to end.
const OPEN_ATTEMPTS: u32 = 20;
const OPEN_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How long after a failure a new store is begun; doubled with each failure in a row.
const BEGIN_AFTER: Duration = Duration::from_secs(1);
/// The longest such pause: a full disk may stay full for hours, and each attempt writes until it fails.
const MAX_BEGIN_AFTER: Duration = Duration::from_secs(300);
/// From so many failures in a row on, the failed store is given up for the room that it takes.
const GIVE_UP_OLD_AFTER: u32 = 5;

/// The store and what is going on in it.
pub(crate) struct Saving {
    config: Config,
    state: State,
    /// Whether a restart can begin with the store.
    complete: bool,
    /// A save or the beginning of a store; a base.
    work: JoinSet<Done>,
    base: Option<UnderWay>,
    /// Bases that are to be committed with the next save.
    written: Vec<(RankNumber, Base)>,
    /// Failures since a store was last complete.
    failures: u32,
    metrics: Metrics,
    health: Component,
    saved_at: Timestamp,
    stopping: bool,
}

/// Where the store is.
enum State {
    /// Here.
    Idle(Box<Store>),
    /// With a save.
    Busy,
    /// It failed, and a new one is due.
    Failed(Timestamp),
    /// A new one is being begun.
    Beginning,
}

/// The base that is being written.
struct UnderWay {
    number: RankNumber,
    /// Whether its rank has gone meanwhile, or its store.
    void: bool,
}

/// What has ended.
pub(crate) enum Done {
    /// A save, with the store and how many bytes it wrote.
    Saved(Result<(Box<Store>, u64), StoreError>),
    /// A base.
    Based(Result<(RankNumber, Base), StoreError>),
    /// A store has been begun.
    Begun(Result<Box<Store>, StoreError>),
}

/// What the loop is to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Go on.
    Continue,
    /// The store is empty: everything is to be saved anew.
    SaveAll,
}

/// Opens the store and reads it into an index. A store that cannot be read is moved aside, and the answer
/// is an empty one.
pub(crate) async fn open(
    config: &Config,
    metrics: Metrics,
    health: Component,
) -> anyhow::Result<(Saving, PrefixIndex, Loaded)> {
    let path = &config.data_dir;
    if let Some(parent) = path.parent() {
        let made = std::fs::create_dir_all(parent);
        made.with_context(|| format!("create the folder {}", parent.display()))?;
    }
    let mut attempt = 1;
    let read = loop {
        match read(config).await {
            Err(StoreError::InUse) if attempt < OPEN_ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(OPEN_AGAIN_AFTER).await;
            }
            other => break other,
        }
    };
    let (store, index, loaded) = match read {
        Ok(read) => read,
        Err(StoreError::InUse) => {
            return Err(StoreError::InUse).with_context(|| format!("open {}", path.display()));
        }
        Err(why) => {
            metrics.store_broken.inc();
            start_over(config, &why).await?
        }
    };
    health.ready();
    let saving = Saving {
        config: config.clone(),
        complete: store.is_complete(),
        state: State::Idle(store),
        work: JoinSet::new(),
        base: None,
        written: Vec::new(),
        failures: 0,
        metrics,
        health,
        saved_at: Timestamp::ZERO,
        stopping: false,
    };
    Ok((saving, index, loaded))
}

async fn start_over(
    config: &Config,
    why: &StoreError,
) -> anyhow::Result<(Box<Store>, PrefixIndex, Loaded)> {
    let path: &Path = &config.data_dir;
    let aside = move_aside(path);
    let aside = aside.with_context(|| format!("move {} aside", path.display()))?;
    let why = error_chain(why);
    warn!(aside = %aside.display(), why, "unusable index store moved aside; rebuilding");
    let read = read(config).await;
    read.with_context(|| format!("open {}", path.display()))
}

/// On a thread of its own, whose panic is an error: sled panics on some damage.
async fn read(config: &Config) -> Result<(Box<Store>, PrefixIndex, Loaded), StoreError> {
    let config = config.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let mut index = PrefixIndex::new(config.departed_blocks);
        let (store, loaded) = Store::open(&config.data_dir, config.cache_mib, &mut index)?;
        Ok((Box::new(store), index, loaded))
    });
    match reading.await {
        Ok(read) => read,
        Err(panic) => Err(StoreError::Damaged(panic.to_string())),
    }
}

impl Saving {
    /// Whether a save may begin.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    /// Whether what is not saved matters: it does not while there is no store.
    pub(crate) fn is_on(&self) -> bool {
        matches!(self.state, State::Idle(_) | State::Busy)
    }

    /// Whether the store has, or has once had, all ranks.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn last_save(&self) -> Timestamp {
        self.saved_at
    }

    /// Whether there are bases to be committed.
    pub(crate) fn has_bases(&self) -> bool {
        !self.written.is_empty()
    }

    /// Whether a base may be begun: one at a time, from when it is begun until it is committed.
    pub(crate) fn may_write_base(&self) -> bool {
        self.base.is_none() && self.written.is_empty() && self.is_idle() && !self.stopping
    }

    /// Whether the next save can be one that has all ranks, if none is left: no base is still being written.
    pub(crate) fn may_complete(&self) -> bool {
        self.base.is_none()
    }

    /// The rank whose base is to be written next, if it is time for one.
    pub(crate) fn due(&self) -> Option<RankNumber> {
        match &self.state {
            State::Idle(store) => store.due(),
            _ => None,
        }
    }

    /// Begins to write a base of what `rank` is when `changes` have been saved, which is to be done next.
    pub(crate) fn write_base(
        &mut self,
        number: RankNumber,
        rank: StoredRank,
        snapshot: RankSnapshot,
        changes: &Changes,
    ) {
        let State::Idle(store) = &self.state else {
            return;
        };
        let base = Base {
            generation: store.next_generation(number),
            rank,
            first_frame: store.next_frame() + u64::from(changes.has_frame()),
            bytes: 0,
        };
        self.base = Some(UnderWay {
            number,
            void: false,
        });
        let folder = self.config.data_dir.clone();
        self.work.spawn_blocking(move || {
            let written = write_base(&folder, number, base, &snapshot);
            Done::Based(written.map(|base| (number, base)))
        });
    }

    /// Begins to write `changes`, with the bases that are ready. No other save may be going on.
    pub(crate) fn save(&mut self, mut changes: Changes, now: Timestamp) {
        let State::Idle(mut store) = std::mem::replace(&mut self.state, State::Busy) else {
            unreachable!("the loop saves only while the store is idle");
        };
        self.saved_at = now;
        let gone = |number: &RankNumber| changes.gone.contains(number);
        if let Some(base) = &mut self.base {
            base.void |= gone(&base.number);
        }
        self.written.retain(|(number, _)| !gone(number));
        changes.bases = std::mem::take(&mut self.written);
        self.work.spawn_blocking(move || {
            let saved = store.save(&changes);
            Done::Saved(saved.map(|bytes| (store, bytes)))
        });
    }

    /// Begins a new store where one has failed, once it is time.
    pub(crate) fn begin_if_due(&mut self, now: Timestamp) {
        let State::Failed(at) = self.state else {
            return;
        };
        // A base under way would be written into the new folder.
        if now < at || !self.work.is_empty() || self.stopping {
            return;
        }
        self.state = State::Beginning;
        let config = self.config.clone();
        let make_room = GIVE_UP_OLD_AFTER <= self.failures;
        self.work.spawn_blocking(move || {
            let begun = begin_anew(&config.data_dir, config.cache_mib, make_room);
            Done::Begun(begun.map(Box::new))
        });
    }

    /// Waits for anything to end; for ever if nothing is going on.
    pub(crate) async fn done(&mut self) -> Result<Done, JoinError> {
        match self.work.join_next().await {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }

    /// Takes note of what has ended.
    pub(crate) fn note(&mut self, done: Result<Done, JoinError>, now: Timestamp) -> Then {
        match done {
            Ok(Done::Saved(Ok((store, bytes)))) => {
                self.count("journal", bytes);
                if store.is_complete() && !self.complete {
                    self.complete = true;
                    self.failures = 0;
                    self.metrics.store_degraded.set(0);
                    self.health.finds(Vec::new());
                    info!("the index store has everything");
                }
                self.state = State::Idle(store);
            }
            Ok(Done::Based(Ok((number, base)))) => {
                self.count("base", base.bytes);
                // What is void is left over, and removed at the next start.
                if self.base.take().is_some_and(|it| !it.void) {
                    self.written.push((number, base));
                }
            }
            Ok(Done::Begun(Ok(store))) => {
                info!("began a new index store");
                self.state = State::Idle(store);
                self.complete = false;
                return Then::SaveAll;
            }
            Ok(Done::Based(Err(_))) if self.base.as_ref().is_some_and(|it| it.void) => {
                self.base = None;
            }
            Ok(Done::Saved(Err(why)) | Done::Based(Err(why)) | Done::Begun(Err(why))) => {
                self.fail(&why, now);
            }
            Err(panic) => self.fail(&StoreError::Damaged(panic.to_string()), now),
        }
        Then::Continue
    }

    /// The process is about to end: nothing is begun any more but saves.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether something is going on that the end of the process is to wait for.
    pub(crate) fn is_at_work(&self) -> bool {
        !self.work.is_empty()
    }

    fn count(&self, kind: &str, bytes: u64) {
        self.metrics
            .store_bytes
            .with_label_values(&[kind])
            .inc_by(bytes);
    }

    fn fail(&mut self, why: &StoreError, now: Timestamp) {
        self.metrics.store_failures.inc();
        self.metrics.store_degraded.set(1);
        let pause = BEGIN_AFTER.saturating_mul(1 << self.failures.min(10));
        let pause = pause.min(MAX_BEGIN_AFTER);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Failed(now + pause);
        self.written.clear();
        if let Some(base) = &mut self.base {
            base.void = true;
        }
        let why = error_chain(why);
        error!(
            why,
            again_after = ?pause,
            "index store failed; serving from memory, and nothing is saved until a new store has everything"
        );
        self.health.finds(vec![format!(
            "degraded: nothing is saved, and a restart would begin at the last save: {why}"
        )]);
    }
}
