//! One decision with everything it weighed.

use domain::{Target, Tokens};
use placement::{Candidate, Place, Scored};
use routing::{Decision, Fault, Outcome};
use serde::Serialize;

use super::names;
use super::waterfall::WaterfallView;
use crate::ledger::{Entry, Judged};
use crate::place::degraded_name;
use crate::run::shown;

/// A decision, whole, and what came of it.
#[derive(Serialize)]
pub(crate) struct DecisionView {
    pub(super) id: String,
    pub(super) at_seconds: f64,
    pub(super) model: String,
    pub(super) endpoint: &'static str,
    pub(super) conversation: Option<String>,
    pub(super) worker: String,
    pub(super) epoch: u64,
    /// None where the engine chooses.
    pub(super) dp_rank: Option<u32>,
    /// Text form of the target, where a rank is named.
    pub(super) target: Option<String>,
    /// Base URL of the worker, while it is registered.
    pub(super) url: Option<String>,
    pub(super) overlap_tokens: Option<u64>,
    pub(super) isl: u64,
    pub(super) uncached_tokens: Option<u64>,
    pub(super) reason: String,
    pub(super) binding: String,
    pub(super) degraded: Vec<&'static str>,
    pub(super) policy: String,
    pub(super) seed: u64,
    /// How long the request waited in the router for a target.
    pub(super) queued_seconds: f64,
    pub(super) retry_of: Option<String>,
    pub(super) index_age_seconds: Option<f64>,
    /// What the policy preferred, also where a binding overruled it.
    pub(super) policy_choice: Option<String>,
    pub(super) candidates: Vec<CandidateView>,
    /// What has shown where it ran.
    pub(super) ran: Option<RanView>,
    pub(super) outcome: Option<OutcomeView>,
    pub(super) waterfall: Option<WaterfallView>,
}

#[derive(Serialize)]
pub(super) struct CandidateView {
    pub(super) target: String,
    pub(super) chosen: bool,
    pub(super) state: &'static str,
    pub(super) barred: Option<&'static str>,
    pub(super) held_tokens: u64,
    pub(super) held_gpu_tokens: u64,
    /// What of it no event shows.
    pub(super) presumed_tokens: u64,
    pub(super) in_flight_tokens: u64,
    pub(super) pending_tokens: u64,
    pub(super) foreign_tokens: u64,
    pub(super) active: u32,
    pub(super) resident_tokens: u64,
    pub(super) capacity_tokens: Option<u64>,
    /// Conversations bound there that were heard of lately, and what they will ask in the next minute.
    pub(super) conversations: u32,
    pub(super) obliged_tokens: f64,
    pub(super) prefill_tokens_per_second: f64,
    pub(super) decode_step_seconds: f64,
    /// None where it could not be chosen.
    pub(super) cost: Option<CostView>,
}

#[derive(Serialize)]
pub(super) struct CostView {
    total_seconds: f64,
    credited_tokens: u64,
    uncached_tokens: u64,
    pending_seconds: f64,
    miss_seconds: f64,
    delay_seconds: f64,
    transfer_seconds: f64,
    lockstep_seconds: f64,
    decode_seconds: f64,
    capacity_seconds: f64,
    obligation_seconds: f64,
}

/// Where it ran, and what was wrong with that.
#[derive(Serialize)]
pub(super) struct RanView {
    pub(super) dp_rank: Option<u32>,
    pub(super) evidence: Option<&'static str>,
    pub(super) fault: Option<&'static str>,
}

#[derive(Serialize)]
pub(super) struct OutcomeView {
    pub(super) status: &'static str,
    pub(super) ttft_ms: Option<f64>,
    pub(super) duration_ms: Option<f64>,
    pub(super) observed_rank: Option<u32>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) completion_tokens: Option<u64>,
    pub(super) cached_tokens: Option<u64>,
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
            endpoint: decision.endpoint.name(),
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
            policy: decision.policy.to_string(),
            seed: decision.seed,
            queued_seconds: entry.queued.as_secs_f64(),
            retry_of: entry.retry_of.map(|id| id.to_string()),
            index_age_seconds: decision.index_age.map(|it| it.as_secs_f64()),
            policy_choice: decision.choice.as_ref().ok().map(names::choice),
            candidates: candidates
                .map(|it| CandidateView::of(it, decision))
                .collect(),
            ran: entry.judged.map(RanView::of),
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
            state: candidate.state.name(),
            barred: candidate.barred.map(names::barred),
            held_tokens: candidate.held.disk.get(),
            held_gpu_tokens: candidate.held.gpu.get(),
            presumed_tokens: candidate.presumed.get(),
            in_flight_tokens: candidate.in_flight.get(),
            pending_tokens: candidate.pending.get(),
            foreign_tokens: candidate.foreign.get(),
            active: candidate.active,
            resident_tokens: candidate.resident.get(),
            capacity_tokens: candidate.capacity.map(Tokens::get),
            conversations: candidate.obligation.conversations,
            obliged_tokens: candidate.obligation.tokens,
            prefill_tokens_per_second: candidate.prefill_rate,
            decode_step_seconds: candidate.decode_step,
            cost: score.map(CostView::of),
        }
    }
}

/// A term of a cost by its name.
type Term = (&'static str, fn(&CostView) -> f64);

impl CostView {
    /// The terms that sum to the total, in seconds.
    pub(super) const TERMS: [Term; 8] = [
        ("pending", |it| it.pending_seconds),
        ("miss", |it| it.miss_seconds),
        ("delay", |it| it.delay_seconds),
        ("transfer", |it| it.transfer_seconds),
        ("lockstep", |it| it.lockstep_seconds),
        ("decode", |it| it.decode_seconds),
        ("capacity", |it| it.capacity_seconds),
        ("obligation", |it| it.obligation_seconds),
    ];

    pub(super) const fn total(&self) -> f64 {
        self.total_seconds
    }

    pub(super) const fn uncached(&self) -> u64 {
        self.uncached_tokens
    }

    fn of(scored: &Scored) -> Self {
        let terms = &scored.terms;
        Self {
            total_seconds: scored.cost,
            credited_tokens: terms.credited.get(),
            uncached_tokens: terms.uncached.get(),
            pending_seconds: terms.pending,
            miss_seconds: terms.miss,
            delay_seconds: terms.delay,
            transfer_seconds: terms.transfer,
            lockstep_seconds: terms.lockstep,
            decode_seconds: terms.decode,
            capacity_seconds: terms.capacity,
            obligation_seconds: terms.obligation,
        }
    }
}

impl RanView {
    fn of(judged: Judged) -> Self {
        let shown = shown(judged.seen);
        Self {
            dp_rank: shown.map(|it| it.0.get()),
            evidence: shown.map(|it| names::evidence(it.1)),
            fault: judged.fault.map(Fault::name),
        }
    }
}

impl OutcomeView {
    pub(super) fn of(outcome: &Outcome) -> Self {
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
