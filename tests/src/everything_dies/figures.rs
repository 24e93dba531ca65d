//! What it came to, and whether that is what was to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use affinity::BindingState;
use serde::Serialize;

use super::last::Last;
use super::timeline::{Event, Timeline};
use super::traffic::Turns;
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
}

/// The summary.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    seed: u64,
    seconds: u32,
    conversations: u32,
    frozen: bool,
    /// NATS among them; or frozen.
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
    /// Conversations of which a last turn, after all were back, ran where they are bound; the last turns that ran
    /// elsewhere, and those that routers say to have sent elsewhere for once.
    last_turns_kept: u64,
    last_turns_beside: u64,
    last_turns_beside_said: u64,
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
            let bound = now.get(conversation).and_then(|it| it.last());
            let bound = bound.is_some_and(|it| it.binding.is_some());
            bindings.lost += u64::from(confirmed && !bound);
            bindings.moved += moves(steps);
        }
        for (worker, requests) in (1..).zip(served) {
            for request in requests {
                let id = request.request_id.as_deref();
                let Some((conversation, _)) = id.and_then(|it| it.rsplit_once('.')) else {
                    continue;
                };
                let ran = format!("w{worker}/{}", request.dp_rank);
                let steps = all.get(conversation).copied().unwrap_or_default();
                bindings.beside += u64::from(!places(steps).contains(&ran));
            }
        }
        bindings
    }
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
        (last, bindings): (Last, Bindings),
        truth: Option<Duration>,
    ) -> Self {
        let degraded = observed.iter().map(|(_, event)| match event {
            Event::Degraded(_, count) => *count,
            _ => 0,
        });
        let turns = turns.and(last.turns);
        let killed = observed
            .iter()
            .filter(|it| matches!(it.1, Event::Killed(_) | Event::Frozen(_)));
        Self {
            seed: options.seed,
            seconds: options.seconds,
            conversations: options.conversations,
            frozen: options.freeze,
            processes_killed: killed.count(),
            requests: turns.requests,
            failed_before_first_byte: turns.failed,
            retried_elsewhere: turns.retried_elsewhere,
            streams_broken: turns.broken,
            bindings_confirmed: bindings.confirmed,
            bindings_lost: bindings.lost,
            double_bindings: bindings.doubled,
            moved: bindings.moved,
            turns_beside: bindings.beside,
            last_turns_kept: last.kept,
            last_turns_beside: last.beside,
            last_turns_beside_said: last.beside_said,
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
            "of {} requests while {} processes were {}, {} failed before their first byte and {} streams broke off; \
             of {} confirmed bindings {} were lost and {} doubled, and {} of {} conversations went on where they are bound; the \
             index was the engines' truth {told} all were ready and quiet",
            self.requests,
            self.processes_killed,
            if self.frozen { "frozen" } else { "killed" },
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
            && self.last_turns_beside <= self.last_turns_beside_said
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
            Event::Back(name) => {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        Figures {
            seed: 1,
            seconds: 60,
            conversations: 200,
            frozen: false,
            processes_killed: 10,
            requests: 4_000,
            failed_before_first_byte: 0,
            retried_elsewhere: 100,
            streams_broken: 9,
            bindings_confirmed: 200,
            bindings_lost: 0,
            double_bindings: 0,
            moved: 1,
            turns_beside: 3,
            last_turns_kept: 200,
            last_turns_beside: 0,
            last_turns_beside_said: 0,
            degraded_decisions: 20,
            slowest_return_seconds: 2.0,
            index_true_after_seconds: Some(0.5),
        }
    }

    #[test]
    fn nothing_fails_or_is_lost_and_the_index_is_soon_true() {
        let holds = |change: fn(&mut Figures)| {
            let mut figures = figures();
            change(&mut figures);
            figures.holds()
        };
        assert!(holds(|_| {}));
        assert!(!holds(|it| it.failed_before_first_byte = 1));
        assert!(!holds(|it| it.bindings_confirmed = 199));
        assert!(!holds(|it| it.bindings_lost = 1));
        assert!(!holds(|it| it.double_bindings = 1));
        assert!(!holds(|it| it.last_turns_kept = 199));
        assert!(!holds(|it| it.last_turns_beside = 1));
        assert!(holds(|it| (
            it.last_turns_beside,
            it.last_turns_beside_said
        ) = (1, 1)));
        assert!(!holds(|it| it.index_true_after_seconds = Some(2.5)));
        assert!(!holds(|it| it.index_true_after_seconds = None));
    }
}
