//! Draining workers and ranks, part of the admin API.
//!
//! What is drained stands in a table of its own and is followed by every router, so that it takes hold at all of them
//! at once, and outlives them and the engine's adapter.

use std::sync::Arc;
use std::time::Duration;

use affinity::Owner;
use axum::extract::{Path, RawQuery, State};
use axum::routing::post;
use axum::{Json, Router};
use bus::{Bus, BusError, Expect, Key};
use bytes::Bytes;
use contracts::{Encoding as _, topics};
use domain::{DpRank, Drain, WorkerId};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::bindings::operator;
use crate::error::{ApiError, excerpt};
use crate::query::Query;
use crate::replica::Replica;
use crate::view::WorkerView;

/// How long the answer waits for this router to follow what it has written.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);
/// How often it looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Clone)]
struct Admin {
    replica: Arc<Replica>,
    bus: Arc<dyn Bus>,
}

pub(crate) fn routes(replica: Arc<Replica>, bus: Arc<dyn Bus>) -> Router {
    Router::new()
        .route("/api/v1/workers/{id}/drain", post(drain_worker))
        .route("/api/v1/workers/{id}/undrain", post(undrain_worker))
        .route("/api/v1/workers/{id}/ranks/{rank}/drain", post(drain_rank))
        .route(
            "/api/v1/workers/{id}/ranks/{rank}/undrain",
            post(undrain_rank),
        )
        .with_state(Admin { replica, bus })
}

type Answer = Result<Json<Value>, ApiError>;

/// What a drain can be told: `move=true` has the conversations there go elsewhere at their next turn.
const TOLD: &[&str] = &["move"];

async fn drain_worker(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    RawQuery(told): RawQuery,
) -> Answer {
    let place = admin.known(&id, None)?;
    admin.drain(place, told.as_deref()).await
}

async fn drain_rank(
    State(admin): State<Admin>,
    Path((id, rank)): Path<(String, String)>,
    RawQuery(told): RawQuery,
) -> Answer {
    let place = admin.known(&id, Some(&rank))?;
    admin.drain(place, told.as_deref()).await
}

async fn undrain_worker(State(admin): State<Admin>, Path(id): Path<String>) -> Answer {
    let (worker, dp_rank) = admin.known(&id, None)?;
    admin.undrain(worker, dp_rank).await
}

async fn undrain_rank(
    State(admin): State<Admin>,
    Path((id, rank)): Path<(String, String)>,
) -> Answer {
    let (worker, dp_rank) = admin.known(&id, Some(&rank))?;
    admin.undrain(worker, dp_rank).await
}

impl Admin {
    /// Drains, or says of what is drained already whether its conversations are to move.
    async fn drain(
        &self,
        (worker, dp_rank): (WorkerId, Option<DpRank>),
        told: Option<&str>,
    ) -> Answer {
        let moves = Query::read(told, TOLD)?.parsed("move")?.unwrap_or(false);
        if dp_rank.is_some() {
            self.heeds_ranks(&worker, moves)?;
        }
        let before = self.drained(&worker, dp_rank);
        let drain = Drain {
            worker: worker.clone(),
            dp_rank,
            moves,
            actor: operator(),
            since: before.map_or(self.replica.clock.now(), |it| it.since),
        };
        self.put(&worker, dp_rank, Some(drain.to_bytes())).await?;
        let follows = || self.drained(&worker, dp_rank).is_some_and(|it| it == drain);
        Ok(self.answer(&worker, follows).await)
    }

    /// An error where a worker's engine decides for itself which of its ranks serve what is to leave one.
    fn heeds_ranks(&self, worker: &WorkerId, moves: bool) -> Result<(), ApiError> {
        let router = self.replica.mind.lock();
        let why = if router.owner(worker) == Owner::Engine {
            format!(
                "the engine of worker {worker} chooses among its ranks: drain all of it (`rankway drain {worker}`)"
            )
        } else if moves
            && router
                .worker(worker)
                .is_some_and(|it| it.capability.owns_bindings)
        {
            format!(
                "the engine of worker {worker} keeps a conversation on its first rank: drain without moving what is \
                 there, or move all off the worker (`rankway drain {worker} --move`)"
            )
        } else {
            return Ok(());
        };
        Err(ApiError::invalid(why))
    }

    /// Ends the drain of a worker, and with it those of its ranks; or that of one rank.
    async fn undrain(&self, worker: WorkerId, dp_rank: Option<DpRank>) -> Answer {
        let drained = self.replica.mind.lock().drained(&worker).cloned();
        let drained = drained.unwrap_or_default();
        if dp_rank.is_some() && drained.whole.is_some() {
            let why = format!(
                "all of worker {worker} is drained: undrain it (`rankway drain {worker} --undo`), and drain its other \
                 ranks"
            );
            return Err(ApiError::invalid(why));
        }
        let ranks = drained.ranks.into_keys().map(Some);
        let ended: Vec<_> = match dp_rank {
            Some(_) => vec![dp_rank],
            None => ranks.chain([None]).collect(),
        };
        for dp_rank in &ended {
            self.put(&worker, *dp_rank, None).await?;
        }
        let follows = || {
            let mut ended = ended.iter();
            ended.all(|it| self.drained(&worker, *it).is_none())
        };
        Ok(self.answer(&worker, follows).await)
    }

    /// By which drain of just this this router goes.
    fn drained(&self, worker: &WorkerId, dp_rank: Option<DpRank>) -> Option<Drain> {
        let router = self.replica.mind.lock();
        let drained = router.drained(worker)?;
        match dp_rank {
            Some(dp_rank) => drained.ranks.get(&dp_rank).cloned(),
            None => drained.whole.clone(),
        }
    }

    /// A worker that is registered or drained, and one of its ranks.
    fn known(&self, id: &str, rank: Option<&str>) -> Result<(WorkerId, Option<DpRank>), ApiError> {
        let router = self.replica.mind.lock();
        let workers = || {
            let ids: Vec<&str> = router.workers().map(|it| it.id.as_str()).collect();
            ids.join(", ")
        };
        let text = id;
        let id: Option<WorkerId> = id.parse().ok();
        let known = id.filter(|it| router.worker(it).is_some() || router.drained(it).is_some());
        let Some(worker) = known else {
            let path = format!(
                "worker {:?}: choose one of {} (`rankway workers ls`)",
                excerpt(text),
                workers()
            );
            return Err(ApiError::UnknownPath { path });
        };
        let Some(text) = rank else {
            return Ok((worker, None));
        };
        let rank = text.parse().ok().map(DpRank::new);
        let owned = |rank: &DpRank| {
            let registered = router.worker(&worker).is_some_and(|it| it.owns(*rank));
            let drained = router.drained(&worker);
            registered || drained.is_some_and(|it| it.ranks.contains_key(rank))
        };
        match rank.filter(owned) {
            Some(rank) => Ok((worker, Some(rank))),
            None => {
                let path = format!(
                    "rank {:?} of worker {worker} (`rankway targets ls` lists them)",
                    excerpt(text)
                );
                Err(ApiError::UnknownPath { path })
            }
        }
    }

    async fn put(
        &self,
        worker: &WorkerId,
        dp_rank: Option<DpRank>,
        value: Option<Bytes>,
    ) -> Result<(), ApiError> {
        let key = Key(Bytes::from(Drain::place_of(worker, dp_rank)));
        let table = &topics::DRAINS.table;
        let put = self.bus.put(table, key, value, Expect::Any).await;
        let unavailable = |error: BusError| ApiError::Unavailable {
            why: error.to_string(),
        };
        put.map(|_| ()).map_err(unavailable)
    }

    /// Answers once this router goes by what was written; peers follow it as fast.
    async fn answer(&self, worker: &WorkerId, follows: impl Fn() -> bool) -> Json<Value> {
        let deadline = Instant::now() + FOLLOWED_WITHIN;
        while !follows() && Instant::now() < deadline {
            sleep(LOOK_EVERY).await;
        }
        let router = self.replica.mind.lock();
        let worker = router.worker(worker);
        let now = self.replica.clock.now();
        let view = worker.map(|it| WorkerView::of(&router, it, &self.replica.emptied, now));
        Json(json!({ "worker": view }))
    }
}
