//! The fleet as this router sees it.

use std::collections::BTreeMap;

use domain::{Endpoint, Epoch, KvEndpoints, Target, Tokens, Worker};
use serde::Serialize;

use super::names;

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
    lease_until_seconds: f64,
    prefill_tokens_per_second: f64,
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
}

impl WorkerView {
    pub(crate) fn of(worker: &Worker, epoch: Epoch, prefill_rate: f64) -> Self {
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
            state: worker.state.name(),
            lease_until_seconds: worker.lease_until.as_secs_f64(),
            prefill_tokens_per_second: prefill_rate,
        }
    }
}

impl TargetView {
    pub(crate) fn of(worker: &Worker, target: &Target, pending: Tokens) -> Self {
        Self {
            target: target.to_string(),
            worker: target.worker.to_string(),
            dp_rank: target.dp_rank.get(),
            model: worker.model.to_string(),
            state: worker.state.name(),
            pending_tokens: pending.get(),
        }
    }
}
