//! Calling an engine through an adapter, and waiting for one that is away.
//!
//! An adapter that dies takes nothing of its worker's cache with it, and is soon back. So a request without a byte
//! waits for one as long as that costs no more than to go elsewhere, and where there is no elsewhere to a bound.

use std::time::Duration;

use bytes::Bytes;
use contracts::rpc::CallHead;
use domain::{Target, Tokens};
use placement::Candidate;
use routing::{BindingAction, Decision, Status};
use tokio::time::{Instant, sleep};

use crate::error::ApiError;
use crate::replica::Replica;
use crate::reply::Answer;
use crate::turn::Turn;

/// How long a request waits in all: a process that is started again is there within seconds, and clients have more
/// patience than that.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often an adapter is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often a request that can go nowhere looks at all workers anew.
const STAY: Duration = Duration::from_secs(2);

/// One request's way to a worker.
#[derive(Default)]
pub(crate) struct Reach {
    /// Since when it has found no adapter.
    since: Option<Instant>,
    /// Whether no other worker could be reached when it was last looked.
    nowhere_else: bool,
}

impl Reach {
    /// Calls the engine of a turn, again and again where no adapter of its worker is reached and `repeats`, as long
    /// as waiting is better than to go elsewhere.
    pub(crate) async fn call(
        &mut self,
        replica: &Replica,
        turn: &mut Turn,
        (head, body): (CallHead, Bytes),
        repeats: bool,
    ) -> Answer {
        let began = Instant::now();
        loop {
            let called = replica.dispatch.call(head.clone(), body.clone()).await;
            let answer = Answer::of(called).await;
            let (Answer::Failed { status, .. }, true) = (&answer, repeats) else {
                return answer;
            };
            if *status != Status::NoAdapter {
                return answer;
            }
            if self.since.is_none() {
                self.since = Some(Instant::now());
                replica.metrics.no_adapter.inc();
            }
            let waits = match self.nowhere_else {
                true => self.is_patient() && began.elapsed() < STAY,
                false => self.waited() < worth(replica, &turn.decision),
            };
            if !waits {
                return answer;
            }
            sleep(LOOK_EVERY).await;
            turn.sent_again();
        }
    }

    /// No adapter was reached of any worker that could serve: waits a little, if there is time left, and then all are
    /// worth another look.
    pub(crate) async fn wait(&mut self) -> bool {
        let waits = self.since.is_some() && self.is_patient();
        if waits {
            self.nowhere_else = true;
            sleep(LOOK_EVERY).await;
        }
        waits
    }

    /// Another worker is looked for.
    pub(crate) const fn look_elsewhere(&mut self) {
        self.nowhere_else = false;
    }

    /// What the client is told when there was no time left.
    pub(crate) fn error(&self, why: &str) -> ApiError {
        let seconds = self.waited().as_secs();
        ApiError::Unavailable {
            why: format!("{why}; waited {seconds} s for it"),
        }
    }

    fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |it| it.elapsed())
    }

    fn is_patient(&self) -> bool {
        self.waited() < PATIENCE
    }
}

/// How long a decided place is worth waiting for: what it would take to compute elsewhere what is cached there, and
/// for a conversation that is bound there its patience besides.
fn worth(replica: &Replica, decision: &Decision) -> Duration {
    let config_patience = || replica.mind.lock().config().patience.wait;
    let patience = match decision.binding {
        BindingAction::Keep => config_patience(),
        BindingAction::None
        | BindingAction::Create
        | BindingAction::Rebind(_)
        | BindingAction::Excursion => 0.0,
    };
    let lost = decision.reserved_at().map_or(0.0, |it| lost(decision, it));
    let worth = Duration::try_from_secs_f64(patience + lost);
    worth.map_or(PATIENCE, |it| it.min(PATIENCE))
}

/// Seconds that it would take another worker to compute what only `place` holds of the request.
fn lost(decision: &Decision, place: &Target) -> f64 {
    let held = |it: &Candidate| it.held.disk.max(it.in_flight);
    let Some(here) = decision.candidate(place) else {
        return 0.0;
    };
    let candidates = decision.snapshot.candidates.iter();
    let others = candidates.filter(|it| it.target.worker != place.worker && it.takes_new());
    let elsewhere = others.map(held).max().unwrap_or(Tokens::ZERO);
    held(here).saturating_sub(elsewhere).as_f64() / here.prefill_rate
}
