//! What is held in memory of each conversation: a bounded cache of the table, and when to look again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use affinity::{BindingKey, Standing, Terms};
use bus::Revision;
use contracts::rpc::Bound;
use domain::Timestamp;

use crate::ask::Ask;
use crate::metrics::Metrics;

/// How many bindings with requests in flight are passed over in search of one to take out of memory; when
/// all are in flight, the bound gives way, because in-flight requests are bounded by themselves.
const EVICTION_ATTEMPTS: usize = 64;

/// What is known of the table's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing, or nothing certain.
    #[default]
    Unread,
    /// There is none.
    Absent,
    /// It stands at this revision.
    At(Revision),
}

/// One conversation.
#[derive(Default)]
pub(crate) struct Slot {
    standing: Standing,
    seen: Seen,
    /// What waits for the one thing under way; none when nothing is.
    busy: Option<VecDeque<Ask>>,
    /// When its time is looked at; one timer for each binding of the table, also of those not in memory.
    armed: Option<Timestamp>,
    /// Its place in the order of use while its binding is in memory.
    used: Option<u64>,
    counted: Option<affinity::BindingState>,
}

/// All of them.
pub(crate) struct Slots {
    slots: BTreeMap<BindingKey, Slot>,
    by_use: BTreeMap<u64, BindingKey>,
    uses: u64,
    timers: BTreeSet<(Timestamp, BindingKey)>,
    capacity: usize,
    terms: Terms,
    metrics: Metrics,
}

impl Slots {
    pub(crate) fn new(capacity: usize, terms: Terms, metrics: Metrics) -> Self {
        Self {
            slots: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            timers: BTreeSet::new(),
            capacity,
            terms,
            metrics,
        }
    }

    /// What is known of a conversation's entry.
    pub(crate) fn seen(&self, key: BindingKey) -> Seen {
        self.slots.get(&key).map_or(Seen::Unread, |slot| slot.seen)
    }

    /// Whether the table may hold an entry of it: one is known, or is waited for to end.
    pub(crate) fn may_exist(&self, key: BindingKey) -> bool {
        let slot = self.slots.get(&key);
        slot.is_some_and(|it| it.armed.is_some() || matches!(it.seen, Seen::At(_)))
    }

    /// Its standing; an empty one if it is not in memory.
    pub(crate) fn standing(&self, key: BindingKey) -> Standing {
        let slot = self.slots.get(&key);
        slot.map(|it| it.standing.clone()).unwrap_or_default()
    }

    /// Its live binding, if that is in memory.
    pub(crate) fn bound(&self, key: BindingKey, now: Timestamp) -> Option<Bound> {
        self.slots.get(&key)?.bound(now, &self.terms)
    }

    /// Live bindings in memory.
    pub(crate) fn list(&self, limit: usize, now: Timestamp) -> Vec<Bound> {
        let slots = self.slots.values();
        let bound = slots.filter_map(|slot| slot.bound(now, &self.terms));
        bound.take(limit).collect()
    }

    /// The conversations whose entries are known to stand in the table.
    pub(crate) fn known(&self) -> BTreeSet<BindingKey> {
        let known =
            |(key, slot): (&BindingKey, &Slot)| matches!(slot.seen, Seen::At(_)).then_some(*key);
        self.slots.iter().filter_map(known).collect()
    }

    /// Takes what now stands.
    pub(crate) fn install(
        &mut self,
        key: BindingKey,
        standing: Standing,
        seen: Seen,
        now: Timestamp,
    ) {
        let state = standing.binding(now, &self.terms).map(|it| it.state);
        let due = standing.due(&self.terms);
        let slot = self.slots.entry(key).or_default();
        self.metrics.count(slot.counted, state);
        slot.counted = state;
        slot.standing = standing;
        slot.seen = seen;
        match due {
            Some(due) => {
                // A timer that is too early looks, and is set again: touches then cost nothing.
                if slot.armed.is_none_or(|armed| due < armed) {
                    self.arm(key, due);
                }
                self.touch(key);
                self.evict(now);
            }
            None => self.forget(key),
        }
    }

    /// What is held of it may not be so any more; what is in flight is.
    pub(crate) fn doubt(&mut self, key: BindingKey, look_at: Timestamp) {
        self.slots.entry(key).or_default().seen = Seen::Unread;
        self.arm(key, look_at);
    }

    /// It has just been of use.
    pub(crate) fn touch(&mut self, key: BindingKey) {
        let Some(slot) = self.slots.get_mut(&key) else {
            return;
        };
        self.uses += 1;
        if let Some(before) = slot.used.replace(self.uses) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, key);
    }

    /// Begins something; the ask is returned to whom it may concern now, or waits its turn.
    pub(crate) fn begin(&mut self, key: BindingKey, ask: Ask) -> Option<Ask> {
        let slot = self.slots.entry(key).or_default();
        match &mut slot.busy {
            Some(waiting) => {
                waiting.push_back(ask);
                None
            }
            None => {
                slot.busy = Some(VecDeque::new());
                Some(ask)
            }
        }
    }

    /// What has waited longest, now that nothing is under way. If nothing waits, the conversation is at
    /// rest, and a slot that holds nothing ends.
    pub(crate) fn next(&mut self, key: BindingKey) -> Option<Ask> {
        let slot = self.slots.get_mut(&key)?;
        if let Some(ask) = slot.busy.as_mut().and_then(VecDeque::pop_front) {
            return Some(ask);
        }
        slot.busy = None;
        if slot.armed.is_none() && slot.used.is_none() {
            self.slots.remove(&key);
        }
        None
    }

    /// When the next timer rings.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// A conversation whose timer has rung.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<BindingKey> {
        let (due, key) = *self.timers.first()?;
        if now < due {
            return None;
        }
        self.timers.pop_first();
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.armed = None;
        }
        Some(key)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        for slot in self.slots.values() {
            self.metrics.count(slot.counted, None);
        }
        self.slots.clear();
        self.by_use.clear();
        self.timers.clear();
    }

    fn arm(&mut self, key: BindingKey, due: Timestamp) {
        let slot = self.slots.entry(key).or_default();
        if let Some(before) = slot.armed.replace(due) {
            self.timers.remove(&(before, key));
        }
        self.timers.insert((due, key));
    }

    /// No binding, no timer, no place in memory.
    fn forget(&mut self, key: BindingKey) {
        let Some(slot) = self.slots.get_mut(&key) else {
            return;
        };
        if let Some(armed) = slot.armed.take() {
            self.timers.remove(&(armed, key));
        }
        if let Some(used) = slot.used.take() {
            self.by_use.remove(&used);
        }
    }

    fn evict(&mut self, now: Timestamp) {
        for _ in 0..EVICTION_ATTEMPTS {
            if self.by_use.len() <= self.capacity {
                return;
            }
            let Some((_, key)) = self.by_use.pop_first() else {
                return;
            };
            let Some(slot) = self.slots.get_mut(&key) else {
                continue;
            };
            slot.used = None;
            if slot.busy.is_some() || slot.standing.is_in_flight(now) {
                self.touch(key);
                continue;
            }
            slot.standing = Standing::default();
            slot.seen = Seen::Unread;
            self.metrics.evictions.inc();
        }
    }
}

impl Slot {
    fn bound(&self, now: Timestamp, terms: &Terms) -> Option<Bound> {
        let Seen::At(revision) = self.seen else {
            return None;
        };
        let binding = self.standing.binding(now, terms)?.clone();
        Some(Bound { binding, revision })
    }
}
