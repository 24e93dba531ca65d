//! `POST /v1/outcome`: what became of a request that somebody else dispatched, where `/v1/route` said and committed to.

mod awaited;
mod room;
mod told;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use contracts::rpc::CallEnd;
use domain::{DecisionId, TenantId};
use routing::Status;
use tokio::time::{MissedTickBehavior, interval};

use self::awaited::{Awaited, Desk};
use self::told::{Phase, Told};
use crate::caller::Caller;
use crate::chain::Chain;
use crate::error::ApiError;
use crate::replica::Replica;
use crate::tenant::Tenant;
use crate::turn::Turn;
use crate::view::OutcomeAnswer;

/// The longest report.
const BODY_LIMIT: usize = 64 << 10;
/// How often leases that have run out are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(200);

/// The decisions that somebody else dispatches, each until its outcome is told or its lease ends.
pub(crate) struct Committed {
    pub(crate) replica: Arc<Replica>,
    desk: Desk,
}

impl Committed {
    pub(crate) fn new(replica: Arc<Replica>) -> Self {
        Self {
            replica,
            desk: Desk::default(),
        }
    }

    /// Keeps a turn of so many blocks, and what is to be done for the one that goes on with its answer, for `lease`,
    /// and as long again from each report on. Where too much waits already the turn is given back.
    pub(crate) fn take(
        &self,
        tenant: &Tenant,
        (turn, chain, blocks): (Turn, Option<Chain>, usize),
        lease: Duration,
    ) -> Result<(), ApiError> {
        let candidates = turn.decision.snapshot.candidates.len();
        let share = self.desk.room.share(tenant, candidates, blocks)?;
        let kept = Awaited::new(&tenant.id, (turn, chain, share), lease);
        self.desk.take(kept);
        Ok(())
    }

    /// Gives back what nobody has told the outcome of in time, for ever.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let mut ticks = interval(SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let expired = self.desk.expired();
            let counter = &self.replica.metrics.ends.expired;
            counter.inc_by(expired.len() as u64);
        }
    }

    /// Gives everything back: nobody can tell this router anything more.
    pub(crate) fn close(&self) {
        drop(self.desk.all());
    }

    async fn settle(&self, tenant: &TenantId, told: Told) -> Result<OutcomeAnswer, ApiError> {
        let id = told.decision;
        let Some(mut reported) = self.desk.find(tenant, id)? else {
            return Ok(self.answer(id, true));
        };
        let awaited = reported.awaited();
        let awaited = awaited.expect("what was just found waits until its turn is taken");
        let end = told.end(&awaited.turn)?;
        awaited.go_on_by(told.response_id()).await?;
        let turn = &mut awaited.turn;
        turn.measured_elsewhere(told.ttft(), told.duration());
        match told.phase {
            Phase::FirstToken => {
                turn.first_chunk();
                Ok(OutcomeAnswer::awaited(id, awaited.renew()))
            }
            Phase::Done => {
                if let Some(turn) = reported.take() {
                    end_turn(turn, told.status(), &end).await;
                }
                Ok(self.answer(id, false))
            }
        }
    }

    fn answer(&self, id: DecisionId, repeated: bool) -> OutcomeAnswer {
        OutcomeAnswer::settled(id, self.replica.ledger.get(id).as_ref(), repeated)
    }
}

async fn end_turn(mut turn: Turn, status: Status, end: &CallEnd) {
    match status {
        Status::Served => {
            turn.first_chunk();
            turn.end(status, end);
        }
        Status::Cancelled | Status::Invalid => turn.end(status, end),
        _ if turn.has_first_chunk() => turn.end(status, end),
        // Who tries again at once shall find the conversation free.
        Status::Refused
        | Status::Failed
        | Status::RankRefused
        | Status::Unreachable
        | Status::NoAdapter => {
            turn.give_up(status).await;
        }
    }
}

/// Takes what became of a request. Told twice it answers the same; what was told first stands.
pub(crate) async fn outcome(
    Caller(tenant): Caller,
    State(committed): State<Arc<Committed>>,
    request: Request<Body>,
) -> Response {
    let (parts, body) = request.into_parts();
    let read = committed
        .replica
        .bodies
        .read(&parts.headers, body, BODY_LIMIT);
    let settled = async {
        let told = Told::read(&read.await?.bytes)?;
        committed.settle(&tenant.id, told).await
    };
    let response = match settled.await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => error.into_response(),
    };
    committed.replica.count(None, response.status());
    response
}
