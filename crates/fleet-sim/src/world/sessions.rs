//! Which turn comes when.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use domain::Timestamp;

use super::RunError;
use crate::{Begins, Workload};

/// A turn that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) session: usize,
    pub(super) turn: usize,
}

/// What of a workload is still to come.
pub(super) struct Sessions<'a> {
    workload: &'a Workload,
    /// Sessions that begin after a turn. Never iterated.
    after: HashMap<Turn, Vec<(usize, Duration)>>,
    groups: Vec<Group>,
    /// The groups that wait for a session.
    awaited_by: Vec<Vec<usize>>,
    /// The group that a session waits for.
    waits_for: Vec<Option<usize>>,
    steps: (Duration, u32),
}

/// Sessions of which others wait for the last.
struct Group {
    left: usize,
    waiting: Vec<usize>,
    /// When the waiting ones began, and how many of them have not ended.
    step: Option<(Timestamp, usize)>,
}

impl<'a> Sessions<'a> {
    /// The sessions, and when those begin that wait for no other.
    pub(super) fn new(workload: &'a Workload) -> Result<(Self, Vec<(Timestamp, Turn)>), RunError> {
        let count = workload.sessions.len();
        let mut sessions = Self {
            workload,
            after: HashMap::new(),
            groups: Vec::new(),
            awaited_by: vec![Vec::new(); count],
            waits_for: vec![None; count],
            steps: (Duration::ZERO, 0),
        };
        let mut begin = Vec::new();
        let mut group_of = BTreeMap::new();
        for (session, it) in workload.sessions.iter().enumerate() {
            if it.turns.is_empty() {
                return Err(RunError::NoTurns { session });
            }
            match it.begins {
                Begins::At(at) => begin.push((Timestamp::ZERO + at, first_of(session))),
                Begins::After {
                    session: before,
                    turn,
                    pause,
                } => {
                    let known = workload.sessions.get(before);
                    if known.is_none_or(|it| it.turns.len() <= turn) {
                        return Err(RunError::WaitsForNothing { session });
                    }
                    let before = Turn {
                        session: before,
                        turn,
                    };
                    sessions
                        .after
                        .entry(before)
                        .or_default()
                        .push((session, pause));
                }
                Begins::AfterGroup { first, end } => {
                    if end <= first || count < end {
                        return Err(RunError::WaitsForNothing { session });
                    }
                    let group = *group_of
                        .entry((first, end))
                        .or_insert_with(|| sessions.group(first..end));
                    sessions.groups[group].waiting.push(session);
                    sessions.waits_for[session] = Some(group);
                }
            }
        }
        Ok((sessions, begin))
    }

    fn group(&mut self, members: std::ops::Range<usize>) -> usize {
        let number = self.groups.len();
        self.groups.push(Group {
            left: members.len(),
            waiting: Vec::new(),
            step: None,
        });
        for member in members {
            self.awaited_by[member].push(number);
        }
        number
    }

    /// A turn has ended, however: what comes of it, and when.
    pub(super) fn ended(&mut self, ended: Turn, now: Timestamp) -> Vec<(Timestamp, Turn)> {
        let mut next = Vec::new();
        for (session, pause) in self.after.remove(&ended).into_iter().flatten() {
            next.push((now + pause, first_of(session)));
        }
        let turn = ended.turn + 1;
        match self.workload.sessions[ended.session].turns.get(turn) {
            Some(it) => next.push((now + it.gap, Turn { turn, ..ended })),
            None => next.extend(self.session_ended(ended.session, now)),
        }
        next
    }

    fn session_ended(&mut self, session: usize, now: Timestamp) -> Vec<(Timestamp, Turn)> {
        if let Some(group) = self.waits_for[session]
            && let Some((began, left)) = &mut self.groups[group].step
        {
            *left -= 1;
            if *left == 0 {
                self.steps.0 += now.since(*began);
                self.steps.1 += 1;
            }
        }
        let mut next = Vec::new();
        for group in &self.awaited_by[session] {
            let group = &mut self.groups[*group];
            group.left -= 1;
            if group.left == 0 {
                group.step = Some((now, group.waiting.len()));
                next.extend(group.waiting.iter().map(|it| (now, first_of(*it))));
            }
        }
        next
    }

    /// The mean time of a rollout's step.
    pub(super) fn mean_step(&self) -> Option<Duration> {
        (self.steps.1 > 0).then(|| self.steps.0 / self.steps.1)
    }
}

fn first_of(session: usize) -> Turn {
    Turn { session, turn: 0 }
}
