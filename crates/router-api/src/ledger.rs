//! The last decisions, whole, and what came of them: what `explain` reads. And what came of all.

mod account;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use accounting::{Totals, Waterfall};
use affinity::ConversationKey;
use domain::{DecisionId, Timestamp};
use routing::{Decision, Fault, Outcome, Seen};

use self::account::Account;
pub(crate) use self::account::Sheet;

/// Decisions kept.
const MAX_DECISIONS: usize = 10_000;
/// Candidates kept in all of them together, about 200 bytes each: a large fleet keeps fewer decisions.
const MAX_CANDIDATES: usize = 1_000_000;

/// One decision and what came of it.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) decision: Arc<Decision>,
    pub(crate) conversation: Option<ConversationKey>,
    /// Whether the request's tokens were known.
    pub(crate) tokens_known: bool,
    /// Whether a request was to go there; else it was a dry run.
    pub(crate) committed: bool,
    /// How long the request has waited for a target.
    pub(crate) queued: Duration,
    /// The failed attempt that this one follows.
    pub(crate) retry_of: Option<DecisionId>,
    /// What has shown where it ran.
    pub(crate) judged: Option<Judged>,
    pub(crate) end: Option<End>,
}

/// Where a request ran, and what was wrong with that.
#[derive(Clone, Copy)]
pub(crate) struct Judged {
    pub(crate) seen: Seen,
    pub(crate) fault: Option<Fault>,
}

/// How a request ended.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    pub(crate) waterfall: Option<Waterfall>,
}

/// The last decisions, and the waterfall of all since the start.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Guards what is below; held for one entry at a time.
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    entries: HashMap<DecisionId, Entry>,
    /// Oldest first.
    order: VecDeque<DecisionId>,
    candidates: usize,
    account: Account,
}

impl Ledger {
    /// Records a decision. An id already there is corrected.
    pub(crate) fn open(&self, entry: Entry) {
        let id = entry.decision.id;
        let mut books = self.lock();
        books.candidates += size(&entry);
        match books.entries.insert(id, entry) {
            Some(before) => books.candidates -= size(&before),
            None => books.order.push_back(id),
        }
        while MAX_DECISIONS < books.order.len() || MAX_CANDIDATES < books.candidates {
            let Some(oldest) = books.order.pop_front() else {
                break;
            };
            if let Some(entry) = books.entries.remove(&oldest) {
                books.candidates -= size(&entry);
            }
        }
    }

    /// Records what came of a decision at `now`.
    pub(crate) fn close(&self, decision: &Decision, end: End, now: Timestamp) {
        let mut books = self.lock();
        if let Some(waterfall) = &end.waterfall {
            books.account.add(decision, waterfall, now);
        }
        if let Some(entry) = books.entries.get_mut(&decision.id) {
            entry.end = Some(end);
        }
    }

    /// Records what has shown where a request ran. A fault is not forgotten for what shows none.
    pub(crate) fn judge(&self, id: DecisionId, seen: Seen, fault: Option<Fault>) {
        let mut books = self.lock();
        if let Some(entry) = books.entries.get_mut(&id)
            && entry
                .judged
                .is_none_or(|it| it.fault.is_none() || fault.is_some())
        {
            entry.judged = Some(Judged { seen, fault });
        }
    }

    pub(crate) fn get(&self, id: DecisionId) -> Option<Entry> {
        self.lock().entries.get(&id).cloned()
    }

    pub(crate) fn last(&self) -> Option<Entry> {
        let books = self.lock();
        books.entries.get(books.order.back()?).cloned()
    }

    /// The last `limit` decisions, newest first: those made before `before`, and not before `since`; with `committed` no
    /// dry runs.
    pub(crate) fn recent(
        &self,
        limit: usize,
        before: Option<DecisionId>,
        since: Option<Timestamp>,
        committed: bool,
    ) -> Vec<Entry> {
        let books = self.lock();
        let newest = books.order.iter().rev();
        let mut skipped = before;
        let wanted = newest.filter(|id| {
            let is_later = skipped.is_some();
            if skipped == Some(**id) {
                skipped = None;
            }
            !is_later
        });
        wanted
            .filter_map(|id| books.entries.get(id))
            .filter(|it| since.is_none_or(|since| since <= it.decision.at))
            .filter(|it| it.committed || !committed)
            .take(limit)
            .cloned()
            .collect()
    }

    /// How many decisions are kept.
    pub(crate) fn len(&self) -> usize {
        self.lock().order.len()
    }

    /// The waterfall of all requests since the start.
    pub(crate) fn totals(&self) -> Totals {
        self.sheet(None, Timestamp::ZERO).total
    }

    /// The waterfall of all requests since the start, or of those that ended in the `window` before `now`.
    pub(crate) fn sheet(&self, window: Option<Duration>, now: Timestamp) -> Sheet {
        let account = &self.lock().account;
        window.map_or_else(|| account.whole(), |it| account.last(it, now))
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(entry: &Entry) -> usize {
    let scores = entry.decision.scores().len();
    1 + entry.decision.snapshot.candidates.len() + scores
}

#[cfg(test)]
mod tests;
