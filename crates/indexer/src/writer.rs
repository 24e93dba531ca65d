//! The only writer of the index: judges each batch, applies it, and notes what is to be saved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bus::Offset;
use contracts::index_store::{Fence, LogCursors, StoredRank};
use contracts::rpc::{DumpedRank, Feed, Shard};
use domain::{Epoch, KvBatch, KvOp, Target, TargetState, Timestamp, Worker, WorkerId};
use prefix_index::{Applied, Claims, PrefixIndex, RankSnapshot};
use service_kit::Clock;
use tracing::{info, warn};

use crate::answers::Answers;
use crate::dump::Beginning;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::pieces::pieces;
use crate::position::{MAX_PARTS, Position, Verdict};
use crate::resync::Resyncs;
use crate::store::{Changes, Loaded, RankChange, RankNumber};
use crate::tracked::Tracked;

/// Blocks swept at a time, in steps short enough for readers.
const SWEPT_AT_ONCE: usize = 65_536;
const SWEPT_PER_STEP: usize = 512;

/// How far the epoch of a batch may be above the worker's as it is known: epochs are raised one by one, once a restart. A
/// forged one that is believed ends all below it for ever.
const MAX_LEAP: u64 = 1 << 32;

/// What the log has said, and what is known about who says it.
pub(crate) struct Writer {
    answers: Arc<Answers>,
    metrics: Metrics,
    clock: Clock,
    pub(crate) fleet: Fleet,
    pub(crate) resyncs: Resyncs,
    ranks: BTreeMap<Target, Tracked>,
    next_number: u64,
    unsaved: Unsaved,
}

/// What the next save will hold besides the ranks' own changes.
#[derive(Default)]
struct Unsaved {
    ops: usize,
    fences: Vec<Fence>,
    gone: Vec<RankNumber>,
}

impl Writer {
    pub(crate) fn new(
        answers: Arc<Answers>,
        feed: Arc<dyn Feed>,
        metrics: Metrics,
        clock: Clock,
        gone_grace: Duration,
    ) -> Self {
        Self {
            answers,
            clock,
            fleet: Fleet::new(gone_grace),
            resyncs: Resyncs::new(feed, metrics.clone()),
            metrics,
            ranks: BTreeMap::new(),
            next_number: 0,
            unsaved: Unsaved::default(),
        }
    }

    /// Takes up what a store held of `shard`; the index has it already.
    pub(crate) fn take_up(&mut self, loaded: &Loaded, shard: Shard) {
        self.next_number = loaded.next_number;
        let mut elsewhere = Vec::new();
        for (number, rank) in &loaded.ranks {
            let StoredRank {
                target,
                cursor,
                awaiting,
                ..
            } = rank;
            let mut tracked = Tracked::new(*number, target);
            tracked.position = Position::at(*cursor, *awaiting);
            if !shard.follows(tracked.partition) {
                elsewhere.push(target.clone());
            }
            self.ranks.insert(target.clone(), tracked);
        }
        for target in elsewhere {
            info!(%target, "dropped: another shard follows it");
            self.answers.write().forget(&target);
            self.drop_rank(&target);
        }
        // A fence may have been saved after the ranks it ended had been loaded.
        let fences = fences(&self.answers.read());
        for Fence { worker, epoch } in fences {
            self.drop_below(&worker, epoch);
        }
        let now = self.clock.now();
        let targets: Vec<Target> = self.ranks.keys().cloned().collect();
        for target in targets {
            self.settle(&target, now);
        }
    }

    /// Takes note of a registration. What a worker had when it was dropped is asked for again if it is back
    /// in the same incarnation: its engine went on, and says nothing a second time of its own accord.
    pub(crate) fn register(&mut self, worker: &Worker, now: Timestamp) {
        self.answers.members.register(worker.clone());
        let fence = self.answers.read().fence_of(&worker.id);
        for (target, position) in self.fleet.register(worker, now) {
            if fence.is_none_or(|fence| fence <= target.epoch) {
                let mut tracked = Tracked::new(number(&mut self.next_number), &target);
                tracked.position = position;
                self.ranks.insert(target.clone(), tracked);
                self.settle(&target, now);
            }
        }
    }

    /// Takes note that a registration was taken back.
    pub(crate) fn deregister(&mut self, worker: &WorkerId, now: Timestamp) {
        self.answers.members.deregister(worker);
        self.fleet.deregister(worker, now);
    }

    /// Takes one record of a partition; `before` is the record before it.
    pub(crate) fn take(&mut self, batch: KvBatch, before: Option<Offset>) {
        let target = batch.target.clone();
        if batch.parts == 0 || MAX_PARTS < batch.parts {
            warn!(%target, seq = %batch.seq, parts = batch.parts, "batch of too many parts dropped");
            self.metrics.batch("malformed");
            return;
        }
        if self.fleet.is_gone(&target.worker, target.epoch) {
            self.metrics.batch("gone");
            return;
        }
        let fence = self.answers.read().fence_of(&target.worker);
        if fence.is_some_and(|fence| target.epoch < fence) {
            self.metrics.batch("fenced");
            return;
        }
        let leap = target.epoch.get() - fence.map_or(0, Epoch::get);
        if MAX_LEAP < leap {
            warn!(%target, "a batch of an epoch far above the worker's refused");
            self.metrics.batch("leap");
            return;
        }
        if fence != Some(target.epoch) {
            // Only the owner of the epochs gives a higher one, so the lower ones have ended.
            self.fence(&target.worker, target.epoch);
        }
        let now = self.clock.now();
        self.fleet.heard(&target.worker, now);
        let partial = self.claims(&target) != Some(Claims::Complete);
        let engine_ts = batch.engine_ts;
        let next_number = &mut self.next_number;
        let entry = self.ranks.entry(target.clone());
        let tracked = entry.or_insert_with(|| Tracked::new(number(next_number), &target));
        let result = match tracked.position.take(batch, before, partial) {
            Verdict::Apply(ops) => {
                if tracked.position.is_suspect() {
                    let next = tracked.position.next();
                    self.resyncs.progress(&target, next, now);
                }
                self.apply(&target, ops);
                self.lag(&target, now.since(engine_ts));
                "applied"
            }
            Verdict::Held => "held",
            Verdict::Duplicate => "duplicate",
            Verdict::Hole => {
                tracked.changed = true;
                "hole"
            }
        };
        self.metrics.batch(result);
        self.settle(&target, now);
    }

    /// Ends the incarnations of `worker` below `epoch`.
    pub(crate) fn fence(&mut self, worker: &WorkerId, epoch: Epoch) {
        let known = self.answers.read().fence_of(worker);
        if known.is_some_and(|known| epoch <= known) {
            return;
        }
        self.answers.write().fence(worker, epoch);
        self.unsaved.fences.push(Fence {
            worker: worker.clone(),
            epoch,
        });
        self.drop_below(worker, epoch);
    }

    /// The log of `partition` is not the one that was read: whatever came of it may be incomplete.
    pub(crate) fn lose(&mut self, partition: u32) {
        let now = self.clock.now();
        let mut lost = Vec::new();
        for (target, tracked) in &mut self.ranks {
            if tracked.partition == partition {
                tracked.position.lose();
                tracked.changed = true;
                lost.push(target.clone());
            }
        }
        lost.iter().for_each(|target| self.settle(target, now));
    }

    /// Drops workers whose grace has ended, and sweeps.
    pub(crate) fn tidy(&mut self) {
        let now = self.clock.now();
        let known: BTreeMap<WorkerId, Epoch> = self
            .ranks
            .keys()
            .map(|it| (it.worker.clone(), it.epoch))
            .collect();
        for worker in self.fleet.expire(&known, now) {
            info!(%worker, "dropped: neither registered nor heard of");
            let targets = self.ranks.keys().filter(|it| it.worker == worker);
            let targets: Vec<Target> = targets.cloned().collect();
            for target in targets {
                self.answers.write().forget(&target);
                if let Some(tracked) = self.drop_rank(&target) {
                    self.fleet.remember(target, tracked.position);
                }
            }
        }
        for _ in 0..SWEPT_AT_ONCE / SWEPT_PER_STEP {
            if !self.answers.write().sweep(SWEPT_PER_STEP) {
                break;
            }
        }
    }

    /// Sets the gauges.
    pub(crate) fn report(&self) {
        let index = self.answers.read();
        for rank in index.ranks() {
            let dp_rank = rank.target.dp_rank.to_string();
            let labels = [rank.target.worker.as_str(), dp_rank.as_str()];
            let blocks = i64::try_from(rank.blocks).unwrap_or(i64::MAX);
            self.metrics.blocks.with_label_values(&labels).set(blocks);
        }
        let departed = index.forgotten();
        drop(index);
        let not_ready = self.answers.not_ready().len();
        self.metrics.not_ready.set(not_ready as i64);
        let carried = self.answers.carried().forgotten();
        for (kind, blocks) in [("departed", departed), ("carried", carried)] {
            let gauge = self.metrics.forgotten.with_label_values(&[kind]);
            gauge.set(i64::try_from(blocks).unwrap_or(i64::MAX));
        }
    }

    /// Operations applied and not yet gathered.
    pub(crate) fn unsaved_ops(&self) -> usize {
        self.unsaved.ops
    }

    /// The record of `partition` after which a restart must read to get parts held only in memory; none if
    /// no parts are held.
    pub(crate) fn held_since(&self, partition: u32) -> Option<Option<Offset>> {
        let of_partition = self.ranks.values().filter(|it| it.partition == partition);
        of_partition.filter_map(|it| it.position.held_since()).min()
    }

    /// What a dump begins with.
    pub(crate) fn beginning(&self, cursors: LogCursors) -> Beginning {
        Beginning {
            cursors,
            fences: fences(&self.answers.read()),
            ranks: self.ranks.keys().cloned().collect(),
        }
    }

    /// A rank as it is between two batches.
    pub(crate) fn dump(&self, target: &Target) -> Option<(DumpedRank, Option<RankSnapshot>)> {
        let tracked = self.ranks.get(target)?;
        let snapshot = self.answers.read().snapshot(target);
        let rank = DumpedRank {
            target: target.clone(),
            cursor: tracked.position.cursor(),
            awaiting: tracked.position.awaiting(),
            claims: snapshot.as_ref().map_or(Claims::Complete, |it| it.claims),
        };
        Some((rank, snapshot))
    }

    /// Gathers what has changed since the last time, without the cursors of the log.
    pub(crate) fn gather(&mut self) -> Changes {
        let unsaved = std::mem::take(&mut self.unsaved);
        let mut changes = Changes {
            fences: unsaved.fences,
            gone: unsaved.gone,
            ..Changes::default()
        };
        for (target, tracked) in &mut self.ranks {
            if !std::mem::take(&mut tracked.changed) {
                continue;
            }
            let ops = std::mem::take(&mut tracked.ops);
            if tracked.stored {
                let rank = tracked.rank(target, &self.answers.read());
                changes.ranks.push(RankChange {
                    number: tracked.number,
                    rank,
                    ops,
                });
            }
        }
        changes
    }

    /// The store has nothing any more: everything is to be saved anew.
    pub(crate) fn forget_store(&mut self) {
        self.unsaved = Unsaved::default();
        for tracked in self.ranks.values_mut() {
            tracked.stored = false;
            tracked.ops.clear();
        }
        self.unsaved.fences = fences(&self.answers.read());
    }

    /// A rank that the store does not have yet.
    pub(crate) fn unstored(&self) -> Option<RankNumber> {
        let unstored = self.ranks.values().find(|it| !it.stored);
        unstored.map(|it| it.number)
    }

    /// All of a rank for its base, when everything applied has just been gathered. From now on what is applied
    /// is for the journal.
    pub(crate) fn base(&mut self, number: RankNumber) -> Option<(StoredRank, RankSnapshot)> {
        let mut ranks = self.ranks.iter_mut();
        let (target, tracked) = ranks.find(|it| it.1.number == number)?;
        tracked.stored = true;
        let index = self.answers.read();
        let rank = tracked.rank(target, &index);
        let snapshot = index.snapshot(target).unwrap_or(RankSnapshot {
            claims: rank.claims,
            namespaces: Vec::new(),
            blocks: Vec::new(),
        });
        Some((rank, snapshot))
    }

    fn claims(&self, target: &Target) -> Option<Claims> {
        self.answers.read().claims(target)
    }

    fn apply(&mut self, target: &Target, ops: Vec<KvOp>) {
        let tracked = self
            .ranks
            .get_mut(target)
            .expect("a judged target is tracked");
        tracked.changed = true;
        let mut all = Applied::default();
        for op in ops.into_iter().flat_map(pieces) {
            // One lock an operation: readers come in between.
            match self.answers.write().apply(target, &op) {
                Ok(applied) => all += applied,
                Err(fenced) => {
                    // `take` has compared the epochs, and fences come from this task alone.
                    warn!(%target, %fenced, "operation refused");
                    return;
                }
            }
            tracked.ops.push(op);
            self.unsaved.ops += 1;
        }
        self.metrics.applied(&all);
        let capacity = self.fleet.kv_blocks(&target.worker);
        if let (Some(Claims::Partial { announced }), Some(capacity)) =
            (self.claims(target), capacity)
            && capacity <= announced
        {
            self.answers.write().complete(target);
            info!(%target, announced, "complete: it has announced as much as it can hold");
        }
    }

    fn lag(&self, target: &Target, lag: Duration) {
        let dp_rank = target.dp_rank.to_string();
        let labels = [target.worker.as_str(), dp_rank.as_str()];
        let gauge = self.metrics.lag_seconds.with_label_values(&labels);
        gauge.set(lag.as_secs_f64());
    }

    /// Makes the answers and the requests to the feed say what `target` now is.
    fn settle(&mut self, target: &Target, now: Timestamp) {
        let Some(tracked) = self.ranks.get(target) else {
            return;
        };
        let next = tracked.position.next();
        let suspect = tracked.position.is_suspect();
        let state = match self.claims(target) {
            _ if suspect => Some(TargetState::Suspect),
            Some(Claims::Partial { .. }) => Some(TargetState::Partial),
            Some(Claims::Complete) | None => None,
        };
        let known = self.answers.not_ready().get(target).copied();
        if known != state {
            info!(%target, from = ?known, to = ?state, %next, "claims changed");
            let mut not_ready = self.answers.not_ready();
            match state {
                Some(state) => not_ready.insert(target.clone(), state),
                None => not_ready.remove(target),
            };
        }
        if suspect {
            self.resyncs.want(target, next, now);
        } else {
            self.resyncs.done(target);
        }
    }

    fn drop_below(&mut self, worker: &WorkerId, epoch: Epoch) {
        let ended = |it: &&Target| it.worker == *worker && it.epoch < epoch;
        let ended: Vec<Target> = self.ranks.keys().filter(ended).cloned().collect();
        for target in ended {
            self.drop_rank(&target);
        }
    }

    /// Forgets all about `target` but what the index itself has.
    fn drop_rank(&mut self, target: &Target) -> Option<Tracked> {
        self.answers.not_ready().remove(target);
        self.resyncs.done(target);
        self.metrics.forget(target);
        let tracked = self.ranks.remove(target)?;
        self.unsaved.gone.push(tracked.number);
        Some(tracked)
    }
}

/// Gives out the next number.
fn number(next: &mut u64) -> RankNumber {
    *next += 1;
    RankNumber(*next - 1)
}

/// The incarnations that are heard.
fn fences(index: &PrefixIndex) -> Vec<Fence> {
    let fence = |(worker, epoch): (&WorkerId, Epoch)| Fence {
        worker: worker.clone(),
        epoch,
    };
    index.fences().map(fence).collect()
}
