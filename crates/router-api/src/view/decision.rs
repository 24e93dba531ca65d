//! One decision with everything it weighed.

use domain::{Target, Tokens};
use placement::{Candidate, Place, Scored};
use routing::{Decision, Outcome};
use serde::Serialize;

use super::names;
use super::waterfall::WaterfallView;
use crate::ledger::Entry;
use crate::place::degraded_name;

/// A decision, whole, and what came of it.
#[derive(Serialize)]
pub(crate) struct DecisionView {
    id: String,
    at_seconds: f64,
    model: String,
    conversation: Option<String>,
    worker: String,
    epoch: u64,
    /// None where the engine chooses.
    dp_rank: Option<u32>,
    /// Text form of the target, where a rank is named.
    target: Option<String>,
    /// Base URL of the worker, while it is registered.
    url: Option<String>,
    overlap_tokens: Option<u64>,
    isl: u64,
    uncached_tokens: Option<u64>,
    reason: String,
    binding: String,
    degraded: Vec<&'static str>,
    policy: &'static str,
    seed: u64,
    retry_of: Option<String>,
    index_age_seconds: Option<f64>,
    /// What the policy preferred, also where a binding overruled it.
    policy_choice: Option<String>,
    candidates: Vec<CandidateView>,
    outcome: Option<OutcomeView>,
    waterfall: Option<WaterfallView>,
}

#[derive(Serialize)]
struct CandidateView {
    target: String,
    chosen: bool,
    state: &'static str,
    barred: Option<&'static str>,
    held_tokens: u64,
    held_gpu_tokens: u64,
    in_flight_tokens: u64,
    pending_tokens: u64,
    foreign_tokens: u64,
    active: u32,
    resident_tokens: u64,
    capacity_tokens: Option<u64>,
    prefill_tokens_per_second: f64,
    decode_step_seconds: f64,
    /// None where it could not be chosen.
    cost: Option<CostView>,
}

#[derive(Serialize)]
struct CostView {
    total_seconds: f64,
    credited_tokens: u64,
    uncached_tokens: u64,
    pending_seconds: f64,
    miss_seconds: f64,
    transfer_seconds: f64,
    lockstep_seconds: f64,
    decode_seconds: f64,
    capacity_seconds: f64,
}

#[derive(Serialize)]
struct OutcomeView {
    status: &'static str,
    ttft_ms: Option<f64>,
    duration_ms: Option<f64>,
    observed_rank: Option<u32>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

impl DecisionView {
    pub(crate) fn of(entry: &Entry, url: Option<String>) -> Self {
        let decision: &Decision = &entry.decision;
        let target = decision.target();
        let (Place::Target(Target { worker, epoch, .. }) | Place::Worker { worker, epoch }) =
            &decision.place;
        let candidates = decision.snapshot.candidates.iter();
        let degraded = decision.degraded.iter();
        Self {
            id: decision.id.to_string(),
            at_seconds: decision.at.as_secs_f64(),
            model: decision.model.to_string(),
            conversation: entry
                .conversation
                .as_ref()
                .map(|key| key.conversation.to_string()),
            worker: worker.to_string(),
            epoch: epoch.get(),
            dp_rank: target.map(|it| it.dp_rank.get()),
            target: target.map(Target::to_string),
            url,
            overlap_tokens: target.and_then(|it| decision.held_at(it)).map(Tokens::get),
            isl: decision.request.isl.get(),
            uncached_tokens: decision.uncached.map(Tokens::get),
            reason: names::reason(decision.reason),
            binding: names::binding(decision.binding),
            degraded: degraded
                .map(|it| degraded_name(*it, entry.tokens_known))
                .collect(),
            policy: decision.policy.name(),
            seed: decision.seed,
            retry_of: entry.retry_of.map(|id| id.to_string()),
            index_age_seconds: decision.index_age.map(|it| it.as_secs_f64()),
            policy_choice: decision.choice.as_ref().ok().map(names::choice),
            candidates: candidates
                .map(|it| CandidateView::of(it, decision))
                .collect(),
            outcome: entry.end.as_ref().map(|end| OutcomeView::of(&end.outcome)),
            waterfall: entry
                .end
                .as_ref()
                .and_then(|end| end.waterfall.as_ref())
                .map(WaterfallView::of),
        }
    }
}

impl CandidateView {
    fn of(candidate: &Candidate, decision: &Decision) -> Self {
        let scores = decision.scores();
        let score = scores.iter().find(|it| it.target == candidate.target);
        Self {
            target: candidate.target.to_string(),
            chosen: decision.target() == Some(&candidate.target),
            state: names::state(candidate.state),
            barred: candidate.barred.map(names::barred),
            held_tokens: candidate.held.disk.get(),
            held_gpu_tokens: candidate.held.gpu.get(),
            in_flight_tokens: candidate.in_flight.get(),
            pending_tokens: candidate.pending.get(),
            foreign_tokens: candidate.foreign.get(),
            active: candidate.active,
            resident_tokens: candidate.resident.get(),
            capacity_tokens: candidate.capacity.map(Tokens::get),
            prefill_tokens_per_second: candidate.prefill_rate,
            decode_step_seconds: candidate.decode_step,
            cost: score.map(CostView::of),
        }
    }
}

impl CostView {
    fn of(scored: &Scored) -> Self {
        let terms = &scored.terms;
        Self {
            total_seconds: scored.cost,
            credited_tokens: terms.credited.get(),
            uncached_tokens: terms.uncached.get(),
            pending_seconds: terms.pending,
            miss_seconds: terms.miss,
            transfer_seconds: terms.transfer,
            lockstep_seconds: terms.lockstep,
            decode_seconds: terms.decode,
            capacity_seconds: terms.capacity,
        }
    }
}

impl OutcomeView {
    fn of(outcome: &Outcome) -> Self {
        let milliseconds = |it: std::time::Duration| it.as_secs_f64() * 1e3;
        let usage = outcome.usage;
        Self {
            status: names::status(outcome.status),
            ttft_ms: outcome.ttft.map(milliseconds),
            duration_ms: outcome.duration.map(milliseconds),
            observed_rank: outcome.observed_rank.map(|it| it.get()),
            prompt_tokens: usage.map(|it| it.prompt.get()),
            completion_tokens: usage.map(|it| it.completion.get()),
            cached_tokens: usage.and_then(|it| it.cached).map(Tokens::get),
        }
    }
}
