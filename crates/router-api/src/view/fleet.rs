//! The fleet as this router sees it.

use std::collections::BTreeMap;

use domain::{DpRank, Endpoint, FirstRank, KvEndpoints, Target, TargetState, Timestamp, Worker};
use routing::{Drained, Router};
use serde::Serialize;

use super::names;
use crate::emptied::Emptied;

/// A registered worker.
#[derive(Serialize)]
pub(crate) struct WorkerView {
    id: String,
    epoch: u64,
    url: String,
    engine: &'static str,
    version: String,
    model: String,
    start_rank: u32,
    dp_size: u32,
    block_size: u32,
    page_size: u32,
    kv_blocks: Option<u64>,
    /// Whether it tells by events what it holds.
    kv_events: bool,
    /// How far its rank can be decided, by endpoint.
    rank_control: BTreeMap<&'static str, &'static str>,
    state: &'static str,
    /// Who decides the ranks of its conversations.
    rank_source: &'static str,
    /// Whether its engine keeps conversations on ranks by itself.
    owns_bindings: bool,
    /// Whether it then keeps the rank that a first turn names, and how that is known; none where nobody asks.
    first_rank: Option<&'static str>,
    /// Why it is left out, where it cannot do what is set.
    refused: Option<String>,
    /// What an operator drains of it.
    drains: Vec<DrainView>,
    lease_until_seconds: f64,
    prefill_tokens_per_second: f64,
}

/// What an operator drains.
#[derive(Serialize)]
struct DrainView {
    /// None for the whole worker.
    dp_rank: Option<u32>,
    /// Whether conversations go elsewhere at their next turn, instead of staying until they are idle.
    moves: bool,
    actor: String,
    since_seconds: f64,
    /// Since when nothing runs there and nothing is kept there.
    empty_since_seconds: Option<f64>,
}

/// One rank of a registered worker.
#[derive(Serialize)]
pub(crate) struct TargetView {
    target: String,
    worker: String,
    dp_rank: u32,
    model: String,
    state: &'static str,
    pending_tokens: u64,
    /// Requests that hold a place there, which `limit_requests` limits.
    active: u32,
}

impl WorkerView {
    pub(crate) fn of(router: &Router, worker: &Worker, emptied: &Emptied, now: Timestamp) -> Self {
        let epoch = router.epoch(&worker.id).unwrap_or(worker.epoch);
        let drains = router.drained(&worker.id).into_iter();
        let drains = drains.flat_map(Drained::all).map(|it| DrainView {
            dp_rank: it.dp_rank.map(DpRank::get),
            moves: it.moves,
            actor: it.actor.to_string(),
            since_seconds: it.since.as_secs_f64(),
            empty_since_seconds: emptied.since(it).map(Timestamp::as_secs_f64),
        });
        let mut states = worker.ranks().map(|rank| router.state(worker, rank));
        // Where no rank takes new conversations any more, neither does the worker.
        let first = states.next().unwrap_or(worker.state);
        let state = if !router.is_registered(worker, now) {
            TargetState::Gone
        } else if states.all(|it| it == first) {
            first
        } else {
            worker.state
        };
        Self {
            id: worker.id.to_string(),
            epoch: epoch.get(),
            url: worker.url.clone(),
            engine: names::engine(worker.engine),
            version: worker.version.clone(),
            model: worker.model.to_string(),
            start_rank: worker.start_rank,
            dp_size: worker.dp_size,
            block_size: worker.block_size.get(),
            page_size: worker.page_size.get(),
            kv_blocks: worker.kv_blocks,
            kv_events: worker.kv_endpoints != KvEndpoints::None,
            rank_control: Endpoint::ALL
                .iter()
                .map(|it| {
                    let control = worker.capability.rank_control.get(*it);
                    (it.name(), names::rank_control(*control))
                })
                .collect(),
            state: state.name(),
            rank_source: router.owner(&worker.id).name(),
            owns_bindings: worker.capability.owns_bindings,
            first_rank: match worker.capability.first_rank {
                FirstRank::Unasked => None,
                first_rank => Some(first_rank.name()),
            },
            refused: router.refusal(worker).map(|it| it.to_string()),
            drains: drains.collect(),
            lease_until_seconds: worker.lease_until.as_secs_f64(),
            prefill_tokens_per_second: router.prefill_rate(&worker.id),
        }
    }
}

impl TargetView {
    pub(crate) fn of(router: &Router, worker: &Worker, dp_rank: DpRank, now: Timestamp) -> Self {
        let target = Target {
            worker: worker.id.clone(),
            epoch: router.epoch(&worker.id).unwrap_or(worker.epoch),
            dp_rank,
        };
        Self {
            target: target.to_string(),
            worker: target.worker.to_string(),
            dp_rank: target.dp_rank.get(),
            model: worker.model.to_string(),
            state: match router.is_registered(worker, now) {
                true => router.state(worker, dp_rank).name(),
                false => TargetState::Gone.name(),
            },
            pending_tokens: router.pending(&target, now).get(),
            active: router.active(&target, now),
        }
    }
}
