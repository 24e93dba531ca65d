//! What it came to, and whether that is what was to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use affinity::BindingState;
use serde::Serialize;

use super::timeline::{Event, Timeline};
use super::traffic::{LAST, Turns};
use super::{NAME, Options};
use crate::bindings::{History, Step};
use crate::report::Report;
use crate::world::Served;

/// How long after all are ready and quiet the index may differ from the engines, in seconds.
const TRUE_WITHIN: f64 = 2.0;

/// What became of the bindings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bindings {
    /// Conversations that were seen confirmed.
    confirmed: u64,
    /// Of those, such that are bound nowhere in the end.
    lost: u64,
    /// Such that were confirmed at a second target without a move.
    doubled: u64,
    moved: u64,
    /// Turns that ran elsewhere than at any target that their conversation was ever bound to.
    beside: u64,
    /// Of the last turns, those that ran where the conversation is bound.
    last_turns_kept: u64,
}

/// The summary.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    seed: u64,
    seconds: u32,
    conversations: u32,
    /// NATS among them.
    processes_killed: usize,
    requests: u64,
    failed_before_first_byte: u64,
    retried_elsewhere: u64,
    streams_broken: u64,
    bindings_confirmed: u64,
    bindings_lost: u64,
    double_bindings: u64,
    moved: u64,
    turns_beside: u64,
    last_turns_kept: u64,
    degraded_decisions: u64,
    /// The longest that a process took from its start until it said to be ready.
    slowest_return_seconds: f64,
    /// From the moment at which all were ready and quiet until the index was the engines' truth; none where it was not
    /// within 30 s.
    index_true_after_seconds: Option<f64>,
}

impl Bindings {
    /// Of all changes that were seen, what the table holds in the end, and what the engines served.
    pub(super) fn new(history: &History, table: &History, served: &[Vec<Served>]) -> Self {
        let now = table.by_conversation();
        let all = history.by_conversation();
        let mut bindings = Self {
            doubled: history.double_bindings(),
            ..Self::default()
        };
        for (conversation, steps) in &all {
            let bound = steps.iter().filter_map(|it| it.binding.as_ref());
            let confirmed = bound.clone().any(|it| it.state == BindingState::Confirmed);
            bindings.confirmed += u64::from(confirmed);
            bindings.lost += u64::from(confirmed && place(now.get(conversation)).is_none());
            bindings.moved += moves(steps);
        }
        for (worker, requests) in (1..).zip(served) {
            for request in requests {
                let id = request.request_id.as_deref();
                let Some((conversation, turn)) = id.and_then(|it| it.rsplit_once('.')) else {
                    continue;
                };
                let ran = format!("w{worker}/{}", request.dp_rank);
                let kept = place(now.get(conversation)).is_some_and(|it| it == ran);
                bindings.last_turns_kept += u64::from(kept && turn == LAST);
                let steps = all.get(conversation).copied().unwrap_or_default();
                bindings.beside += u64::from(!places(steps).contains(&ran));
            }
        }
        bindings
    }
}

/// Where a conversation is bound after these changes.
fn place(steps: Option<&&[Step]>) -> Option<String> {
    let binding = steps?.last()?.binding.as_ref()?;
    Some(format!(
        "{}/{}",
        binding.target.worker, binding.target.dp_rank
    ))
}

/// Where it was ever bound.
fn places(steps: &[Step]) -> BTreeSet<String> {
    let bound = steps.iter().filter_map(|it| it.binding.as_ref());
    bound
        .map(|it| format!("{}/{}", it.target.worker, it.target.dp_rank))
        .collect()
}

/// How often it was bound elsewhere than before.
fn moves(steps: &[Step]) -> u64 {
    let targets = steps
        .iter()
        .filter_map(|it| Some(&it.binding.as_ref()?.target));
    let targets: Vec<_> = targets.collect();
    targets.windows(2).filter(|it| it[0] != it[1]).count() as u64
}

impl Figures {
    pub(super) fn new(
        options: &Options,
        observed: &[(tokio::time::Instant, Event)],
        turns: Turns,
        last: Turns,
        bindings: Bindings,
        truth: Option<Duration>,
    ) -> Self {
        let degraded = observed.iter().map(|(_, event)| match event {
            Event::Degraded(_, count) => *count,
            _ => 0,
        });
        let killed = observed
            .iter()
            .filter(|it| matches!(it.1, Event::Killed(_)));
        Self {
            seed: options.seed,
            seconds: options.seconds,
            conversations: options.conversations,
            processes_killed: killed.count(),
            requests: turns.requests + last.requests,
            failed_before_first_byte: turns.failed + last.failed,
            retried_elsewhere: turns.retried_elsewhere + last.retried_elsewhere,
            streams_broken: turns.broken + last.broken,
            bindings_confirmed: bindings.confirmed,
            bindings_lost: bindings.lost,
            double_bindings: bindings.doubled,
            moved: bindings.moved,
            turns_beside: bindings.beside,
            last_turns_kept: bindings.last_turns_kept,
            degraded_decisions: degraded.sum(),
            slowest_return_seconds: slowest_return(observed).as_secs_f64(),
            index_true_after_seconds: truth.map(|it| it.as_secs_f64()),
        }
    }

    /// What held, and what happened when.
    pub(super) fn report(&self, timeline: Timeline) -> anyhow::Result<Report> {
        let told = match self.index_true_after_seconds {
            Some(seconds) => format!("{seconds:.2} s after"),
            None => "not within 30 s of when".to_owned(),
        };
        let said = format!(
            "of {} requests while {} processes were killed {} failed before their first byte and {} streams broke off; \
             of {} confirmed bindings {} were lost and {} doubled, {} of {} last turns ran where they are bound; the \
             index was the engines' truth {told} all were ready and quiet",
            self.requests,
            self.processes_killed,
            self.failed_before_first_byte,
            self.streams_broken,
            self.bindings_confirmed,
            self.bindings_lost,
            self.double_bindings,
            self.last_turns_kept,
            self.conversations,
        );
        let report = Report::new(NAME, self.holds(), said, self)?;
        Ok(report.with_rows(timeline.rows())?)
    }

    fn holds(&self) -> bool {
        self.failed_before_first_byte == 0
            && self.bindings_confirmed == u64::from(self.conversations)
            && self.bindings_lost == 0
            && self.double_bindings == 0
            && self.last_turns_kept == u64::from(self.conversations)
            && self
                .index_true_after_seconds
                .is_some_and(|it| it <= TRUE_WITHIN)
    }
}

/// The longest from a start to being ready.
fn slowest_return(observed: &[(tokio::time::Instant, Event)]) -> Duration {
    let mut started = BTreeMap::new();
    let mut slowest = Duration::ZERO;
    for (at, event) in observed {
        match event {
            Event::Started(name) => {
                started.insert(name, *at);
            }
            Event::Ready(name) => {
                if let Some(since) = started.remove(name) {
                    slowest = slowest.max(at.duration_since(since));
                }
            }
            _ => {}
        }
    }
    slowest
}
