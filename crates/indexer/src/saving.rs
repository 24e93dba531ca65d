//! Keeping the store behind the index: one save at a time, one fold or erasure at a time, all off the loop.
//!
//! If the store fails, nothing more is written until the next start. The store then stands at the last save
//! that succeeded, from which the log leads on; the index serves from memory meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use domain::{Target, Timestamp};
use prefix_index::PrefixIndex;
use service_kit::error_chain;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::Config;
use crate::metrics::Metrics;
use crate::store::{
    Changes, Folded, Loaded, RankNumber, Saved, Slots, Store, StoreError, move_aside,
};

/// A rank's segments are folded when they are this many times its base: the base is rewritten once for so
/// many bytes of segments, and a start reads at most so many times the base.
const FOLD_RATIO: u64 = 3;
/// Segments of less are not worth folding.
const FOLD_FROM_BYTES: u64 = 1024 * 1024;
/// How often, and how long apart, a store in use is tried: the process before may be about to end.
const OPEN_ATTEMPTS: u32 = 20;
const OPEN_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The store and what is going on in it.
pub(crate) struct Saving {
    store: Option<Store>,
    metrics: Metrics,
    saves: JoinSet<Result<Saved, StoreError>>,
    folds: JoinSet<Result<(RankNumber, Job), StoreError>>,
    saved_at: Timestamp,
    /// What ranks take of the store.
    taken: BTreeMap<RankNumber, Taken>,
    /// Whether folds and erasures may begin.
    jobs: Jobs,
    /// Ranks to be erased.
    gone: VecDeque<RankNumber>,
}

/// Whether background work may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jobs {
    /// As it is due.
    Begin,
    /// No more: the process is about to end, and the next start does what is left.
    End,
}

/// One rank's share.
#[derive(Clone, Debug)]
struct Taken {
    target: Target,
    slots: Slots,
    base_bytes: u64,
    segment_bytes: u64,
}

impl Taken {
    fn nothing(target: &Target) -> Self {
        Self {
            target: target.clone(),
            slots: Slots::default(),
            base_bytes: 0,
            segment_bytes: 0,
        }
    }
}

/// What has been done in the background.
enum Job {
    Folded(Folded),
    Erased,
}

/// What is ready to be looked at.
pub(crate) enum Done {
    /// A save.
    Save(Result<Saved, StoreError>),
    /// A fold or an erasure.
    Fold(FoldDone),
}

/// The end of a fold or an erasure.
pub(crate) struct FoldDone(Result<(RankNumber, Job), StoreError>);

/// Opens the store and reads it into an index. A store that cannot be read is moved aside, and the answer
/// is an empty one.
pub(crate) async fn open(
    config: &Config,
    metrics: Metrics,
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
    let taken = |(number, rank): (&RankNumber, &crate::store::LoadedRank)| {
        let taken = Taken {
            target: rank.stored.target.clone(),
            slots: rank.slots.clone(),
            base_bytes: rank.base_bytes,
            segment_bytes: rank.segment_bytes,
        };
        (*number, taken)
    };
    let saving = Saving {
        store: Some(store),
        metrics,
        saves: JoinSet::new(),
        folds: JoinSet::new(),
        saved_at: Timestamp::ZERO,
        taken: loaded.ranks.iter().map(taken).collect(),
        jobs: Jobs::Begin,
        gone: VecDeque::new(),
    };
    Ok((saving, index, loaded))
}

async fn start_over(
    config: &Config,
    why: &StoreError,
) -> anyhow::Result<(Store, PrefixIndex, Loaded)> {
    let path: &Path = &config.data_dir;
    let aside = move_aside(path);
    let aside = aside.with_context(|| format!("move {} aside", path.display()))?;
    let why = error_chain(why);
    warn!(aside = %aside.display(), why, "unusable index store moved aside; rebuilding");
    let read = read(config).await;
    read.with_context(|| format!("open {}", path.display()))
}

/// On a thread of its own, whose panic is an error: sled panics on some damage.
async fn read(config: &Config) -> Result<(Store, PrefixIndex, Loaded), StoreError> {
    let config = config.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let store = Store::open(&config.data_dir, config.cache_mib)?;
        let mut index = PrefixIndex::new(config.departed_blocks);
        let loaded = store.load(&mut index)?;
        Ok((store, index, loaded))
    });
    match reading.await {
        Ok(read) => read,
        Err(panic) => Err(StoreError::Damaged(panic.to_string())),
    }
}

impl Saving {
    /// Whether a save may begin.
    pub(crate) fn is_idle(&self) -> bool {
        self.saves.is_empty()
    }

    /// Whether what is not saved matters: it does not once the store has failed.
    pub(crate) fn is_on(&self) -> bool {
        self.store.is_some()
    }

    pub(crate) fn last_save(&self) -> Timestamp {
        self.saved_at
    }

    /// Begins to write `changes`. No other save may be going on.
    pub(crate) fn save(&mut self, mut changes: Changes, now: Timestamp) {
        let Some(store) = self.store.clone() else {
            return;
        };
        self.saved_at = now;
        for change in &mut changes.ranks {
            let taken = self.taken.entry(change.number);
            let taken = taken.or_insert_with(|| Taken::nothing(&change.rank.target));
            if let Some(segment) = &change.segment {
                change.slot = taken.slots.take(segment.number);
            }
        }
        for number in &changes.gone {
            self.taken.remove(number);
            self.gone.push_back(*number);
        }
        self.saves.spawn_blocking(move || store.save(&changes));
    }

    /// Waits for a save, a fold or an erasure to end; for ever if none is going on.
    pub(crate) async fn done(&mut self) -> Done {
        let broken = |error: tokio::task::JoinError| StoreError::Damaged(error.to_string());
        tokio::select! {
            Some(save) = self.saves.join_next() => {
                Done::Save(save.unwrap_or_else(|error| Err(broken(error))))
            }
            Some(fold) = self.folds.join_next() => {
                Done::Fold(FoldDone(fold.unwrap_or_else(|error| Err(broken(error)))))
            }
            else => std::future::pending().await,
        }
    }

    /// Takes note of what has ended, and begins what is due.
    pub(crate) fn note(&mut self, done: Done) {
        match done {
            Done::Save(Ok(saved)) => {
                for (number, bytes) in saved.segments {
                    self.metrics
                        .store_bytes
                        .with_label_values(&["segment"])
                        .inc_by(bytes);
                    if let Some(taken) = self.taken.get_mut(&number) {
                        taken.segment_bytes += bytes;
                    }
                }
            }
            Done::Fold(FoldDone(Ok((number, job)))) => {
                self.note_job(number, job);
            }
            Done::Save(Err(why)) | Done::Fold(FoldDone(Err(why))) => self.fail(&why),
        }
        self.begin_job();
    }

    /// The process is about to end.
    pub(crate) fn begin_no_more_jobs(&mut self) {
        self.jobs = Jobs::End;
    }

    /// Waits until nothing is going on and everything saved outlives the process.
    pub(crate) async fn finish(mut self) {
        while !self.saves.is_empty() || !self.folds.is_empty() {
            let done = self.done().await;
            if let Done::Save(Err(why)) = done {
                self.fail(&why);
            }
        }
        if let Some(store) = self.store.take() {
            let flushed = tokio::task::spawn_blocking(move || store.flush()).await;
            match flushed {
                Ok(Ok(())) => {}
                Ok(Err(why)) => self.fail(&why),
                Err(panic) => self.fail(&StoreError::Damaged(panic.to_string())),
            }
        }
    }

    fn note_job(&mut self, number: RankNumber, job: Job) {
        let Job::Folded(folded) = job else {
            return;
        };
        let counter = self.metrics.store_bytes.with_label_values(&["base"]);
        counter.inc_by(folded.base_bytes);
        match self.taken.get_mut(&number) {
            Some(taken) => {
                taken.slots.free_below(folded.first_segment);
                taken.base_bytes = folded.base_bytes;
                taken.segment_bytes = taken.segment_bytes.saturating_sub(folded.segment_bytes);
                let target = &taken.target;
                info!(%target, base_bytes = folded.base_bytes, "folded segments into a new base");
            }
            // It went while it was folded, and what was written then is left over.
            None => self.gone.push_back(number),
        }
    }

    fn begin_job(&mut self) {
        let Some(store) = self.store.clone() else {
            return;
        };
        // Not beside a save, so that what a fold reads has been written.
        let busy = !self.folds.is_empty() || !self.saves.is_empty();
        if busy || self.jobs == Jobs::End {
            return;
        }
        if let Some(number) = self.gone.pop_front() {
            self.folds
                .spawn_blocking(move || store.erase(number).map(|()| (number, Job::Erased)));
            return;
        }
        let outgrown = |it: &(&RankNumber, &Taken)| {
            FOLD_FROM_BYTES.max(it.1.base_bytes * FOLD_RATIO) < it.1.segment_bytes
        };
        if let Some((number, taken)) = self.taken.iter().find(outgrown) {
            let (number, taken) = (*number, taken.clone());
            self.folds.spawn_blocking(move || {
                let folded = store.fold(number, &taken.target, taken.slots.used())?;
                Ok((number, Job::Folded(folded)))
            });
        }
    }

    fn fail(&mut self, why: &StoreError) {
        self.metrics.store_failures.inc();
        error!(
            why = error_chain(why),
            "index store failed; nothing is saved until the next start"
        );
        self.store = None;
    }
}
