//! What is held in memory of each conversation, and when to look again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use affinity::{BindingKey, Standing, Terms};
use bus::Revision;
use contracts::rpc::{Bound, Page, Search};
use domain::Timestamp;

use crate::ask::Ask;
use crate::metrics::{Counted, Metrics};

/// How many bindings that cannot end are passed over in search of one to make room; when all are in flight, the
/// bound gives way, because in-flight requests are bounded by themselves.
const ROOM_ATTEMPTS: usize = 64;
/// How many bindings one page of a search looks at, a few milliseconds' worth: requests wait meanwhile.
const SEARCHED_AT_ONCE: usize = 8_192;

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
    /// When its time is looked at; one timer for each binding of the table.
    armed: Option<Timestamp>,
    counted: Option<Counted>,
}

/// All of them.
pub(crate) struct Slots {
    /// Boxed, as a tree has room to spare in every node.
    slots: BTreeMap<BindingKey, Box<Slot>>,
    timers: BTreeSet<(Timestamp, BindingKey)>,
    capacity: usize,
    terms: Terms,
    metrics: Metrics,
}

impl Slots {
    pub(crate) fn new(capacity: usize, terms: Terms, metrics: Metrics) -> Self {
        Self {
            slots: BTreeMap::new(),
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

    /// Live bindings that fit, beginning after the page before.
    pub(crate) fn search(&self, search: &Search, now: Timestamp) -> Page {
        let after = search.after.map_or(Unbounded, Excluded);
        let mut page = Page::default();
        for (looked_at, (key, slot)) in self.slots.range((after, Unbounded)).enumerate() {
            let bound = slot.bound(now, &self.terms);
            page.bindings
                .extend(bound.filter(|it| search.filter.fits(&it.binding)));
            if page.bindings.len() >= search.limit || looked_at + 1 >= SEARCHED_AT_ONCE {
                page.next = Some(*key);
                break;
            }
        }
        page
    }

    /// Live bindings.
    pub(crate) fn list(&self, limit: usize, now: Timestamp) -> Vec<Bound> {
        let slots = self.slots.values();
        let bound = slots.filter_map(|slot| slot.bound(now, &self.terms));
        bound.take(limit).collect()
    }

    /// The conversations whose entries are known to stand in the table.
    pub(crate) fn known(&self) -> BTreeSet<BindingKey> {
        let slots = self.slots.iter();
        let known = slots.filter(|(_, slot)| matches!(slot.seen, Seen::At(_)));
        known.map(|(key, _)| *key).collect()
    }

    /// Takes what now stands.
    pub(crate) fn install(
        &mut self,
        key: BindingKey,
        standing: Standing,
        seen: Seen,
        now: Timestamp,
    ) {
        let binding = standing.binding(now, &self.terms);
        let counted = binding.map(|it| Counted::of(it.state));
        let due = standing.due(&self.terms);
        let slot = self.slots.entry(key).or_default();
        self.metrics.count(slot.counted, counted);
        slot.counted = counted;
        slot.standing = standing;
        slot.seen = seen;
        match due {
            Some(due) => {
                // A timer that is too early looks, and is set again: touches then cost nothing.
                if slot.armed.is_none_or(|armed| due < armed) {
                    self.arm(key, due);
                }
            }
            None => self.disarm(key),
        }
    }

    /// A binding that may end because there are too many: of those at rest the one that has been idle for longest.
    pub(crate) fn pop_idle(&mut self, now: Timestamp) -> Option<BindingKey> {
        if self.timers.len() <= self.capacity {
            return None;
        }
        let mut after = Unbounded;
        for _ in 0..ROOM_ATTEMPTS {
            let (armed, key) = *self.timers.range((after, Unbounded)).next()?;
            let slot = self.slots.get(&key)?;
            // Touches leave the timer behind.
            let due = slot.standing.due(&self.terms);
            if let Some(due) = due.filter(|due| armed < *due) {
                self.arm(key, due);
            } else if slot.busy.is_none() && !slot.standing.is_in_flight(now) {
                self.disarm(key);
                return Some(key);
            } else {
                after = Excluded((armed, key));
            }
        }
        None
    }

    /// What is held of it may not be so any more; what is in flight is.
    pub(crate) fn doubt(&mut self, key: BindingKey, look_at: Timestamp) {
        self.slots.entry(key).or_default().seen = Seen::Unread;
        self.arm(key, look_at);
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
        if slot.armed.is_none() {
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
        self.timers.clear();
    }

    fn arm(&mut self, key: BindingKey, due: Timestamp) {
        let slot = self.slots.entry(key).or_default();
        if let Some(before) = slot.armed.replace(due) {
            self.timers.remove(&(before, key));
        }
        self.timers.insert((due, key));
    }

    fn disarm(&mut self, key: BindingKey) {
        let Some(slot) = self.slots.get_mut(&key) else {
            return;
        };
        if let Some(armed) = slot.armed.take() {
            self.timers.remove(&(armed, key));
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
