//! Waterfalls added up: since the start and minute by minute, by model, by worker and by what decided.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use accounting::{Totals, Waterfall};
use domain::{ModelName, Timestamp, WorkerId};
use routing::Decision;

use crate::view::names::reason_kind;

/// Minutes kept one by one.
const MINUTES: usize = 60;
/// Groups told apart in one minute, of 400 bytes each and so 25 MB in all: 100 workers, each with ten reasons. The rest is
/// one group.
const MAX_GROUPS: usize = 1_024;
const MINUTE: Duration = Duration::from_secs(60);

/// What a request is counted under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    model: ModelName,
    worker: WorkerId,
    reason: String,
}

/// Totals by group; what is in no group of its own is under none.
type Groups = BTreeMap<Option<Group>, Totals>;

/// Waterfalls of all requests.
#[derive(Default)]
pub(crate) struct Account {
    since_start: Groups,
    /// By the number of their minute, oldest first.
    minutes: VecDeque<(u64, Groups)>,
}

/// An excerpt of the account: each breakdown sums to the total exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sheet {
    pub(crate) total: Totals,
    pub(crate) by_model: BTreeMap<String, Totals>,
    pub(crate) by_worker: BTreeMap<String, Totals>,
    pub(crate) by_reason: BTreeMap<String, Totals>,
}

impl Account {
    /// Counts what became of a decision at `now`.
    pub(crate) fn add(&mut self, decision: &Decision, waterfall: &Waterfall, now: Timestamp) {
        let group = Group {
            model: decision.model.clone(),
            worker: decision.place.worker().clone(),
            reason: reason_kind(decision.reason),
        };
        let minute = minute_of(now);
        if self.minutes.back().is_none_or(|it| it.0 < minute) {
            self.minutes.push_back((minute, Groups::new()));
        }
        while MINUTES < self.minutes.len() {
            self.minutes.pop_front();
        }
        // A clock never goes back, so it is the last minute's.
        let last = self.minutes.back_mut().map(|it| &mut it.1);
        for groups in [Some(&mut self.since_start), last].into_iter().flatten() {
            add(groups, &group, waterfall);
        }
    }

    /// All requests since the start.
    pub(crate) fn whole(&self) -> Sheet {
        Sheet::of([&self.since_start])
    }

    /// The requests that ended in the last `window`, in whole minutes, and at most an hour.
    pub(crate) fn last(&self, window: Duration, now: Timestamp) -> Sheet {
        let first = minute_of(now).saturating_sub(window.as_secs().div_ceil(MINUTE.as_secs()));
        let minutes = self.minutes.iter();
        Sheet::of(minutes.filter(|it| first < it.0).map(|it| &it.1))
    }
}

impl Sheet {
    fn of<'a>(all: impl IntoIterator<Item = &'a Groups>) -> Self {
        let mut sheet = Self::default();
        for (group, totals) in all.into_iter().flatten() {
            sheet.total.merge(totals);
            let names = group.as_ref().map(|it| {
                let Group {
                    model,
                    worker,
                    reason,
                } = it;
                [model.to_string(), worker.to_string(), reason.clone()]
            });
            let names = names.unwrap_or_else(|| [(); 3].map(|()| "others".to_owned()));
            let breakdowns = [
                &mut sheet.by_model,
                &mut sheet.by_worker,
                &mut sheet.by_reason,
            ];
            for (breakdown, name) in breakdowns.into_iter().zip(names) {
                breakdown.entry(name).or_default().merge(totals);
            }
        }
        sheet
    }
}

fn add(groups: &mut Groups, group: &Group, waterfall: &Waterfall) {
    let own = Some(group.clone());
    let is_full = MAX_GROUPS <= groups.len() && !groups.contains_key(&own);
    let group = if is_full { None } else { own };
    groups.entry(group).or_default().add(waterfall);
}

fn minute_of(at: Timestamp) -> u64 {
    at.as_micros() / 60_000_000
}
