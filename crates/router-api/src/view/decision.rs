//! One decision with everything it weighed.

use domain::{Target, Tokens};
use placement::{Candidate, Choice, Place, Scored};
use routing::{Decision, Fault, Outcome};
use serde::{Serialize, Serializer};

use super::names;
use super::waterfall::WaterfallView;
use super::why_not::WhyNotView;
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
    /// How far the cheapest candidate was ahead of the next.
    pub(super) margin: Option<MarginView>,
    pub(super) ties: Option<TiesView>,
    pub(super) candidates: Vec<CandidateView>,
    /// Why it did not go elsewhere, where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why_not: Option<WhyNotView>,
    /// What has shown where it ran.
    pub(super) ran: Option<RanView>,
    pub(super) outcome: Option<OutcomeView>,
    pub(super) waterfall: Option<WaterfallView>,
}

/// The two cheapest candidates that could be chosen.
#[derive(Serialize)]
pub(super) struct MarginView {
    pub(super) cheapest: String,
    pub(super) second: String,
    /// By how much the second is dearer.
    pub(super) seconds: f64,
    /// By how much the place is dearer than the cheapest; none where it has no price.
    pub(super) over_cheapest_seconds: Option<f64>,
}

/// Candidates that were as good as equal for the policy.
#[derive(Serialize)]
pub(super) struct TiesView {
    pub(super) among: u32,
    /// What decided between them.
    pub(super) decided: &'static str,
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
    /// What the oldest that waits there has waited beyond what it should have.
    pub(super) overdue_seconds: f64,
    /// None where it could not be chosen.
    pub(super) cost: Option<CostView>,
}

#[derive(Serialize)]
pub(super) struct CostView {
    pub(super) total_seconds: f64,
    pub(super) credited_tokens: u64,
    pub(super) uncached_tokens: u64,
    /// What sums to the total, by name; each a member `NAME_seconds`.
    #[serde(flatten, serialize_with = "in_seconds")]
    pub(super) terms: Vec<(&'static str, f64)>,
    /// What a published policy made of it instead, where it weighs; less is better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weighed: Option<f64>,
}

fn in_seconds<S: Serializer>(terms: &[(&str, f64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(
        terms
            .iter()
            .map(|(name, it)| (format!("{name}_seconds"), it)),
    )
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
        let choice = decision.choice.as_ref().ok();
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
            policy_choice: choice.map(|it| names::place(&it.place)),
            margin: MarginView::of(decision),
            ties: choice.and_then(TiesView::of),
            why_not: None,
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
            overdue_seconds: candidate.overdue,
            cost: score.map(CostView::of),
        }
    }
}

impl CostView {
    fn of(scored: &Scored) -> Self {
        Self {
            total_seconds: scored.cost,
            credited_tokens: scored.terms.credited.get(),
            uncached_tokens: scored.terms.uncached.get(),
            terms: scored.terms.named().to_vec(),
            weighed: scored.weighed,
        }
    }
}

impl MarginView {
    fn of(decision: &Decision) -> Option<Self> {
        let mut sorted: Vec<&Scored> = decision.scores().iter().collect();
        sorted.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        let [cheapest, second, ..] = sorted[..] else {
            return None;
        };
        let place = decision.reserved_at();
        let own = sorted.iter().find(|it| Some(&it.target) == place);
        Some(Self {
            cheapest: cheapest.target.to_string(),
            second: second.target.to_string(),
            seconds: second.cost - cheapest.cost,
            over_cheapest_seconds: own.map(|it| it.cost - cheapest.cost),
        })
    }
}

impl TiesView {
    fn of(choice: &Choice) -> Option<Self> {
        use placement::Reason as By;
        let published = choice.scores.iter().any(|it| it.weighed.is_some());
        let (among, decided) = match choice.reason {
            By::LeastCost => (1, "its cost"),
            By::NearTie { among } if published => (among, "a draw by the seed"),
            By::NearTie { among } => (
                among,
                "fewest obligations, then two drawn by the seed: rarer blocks, less busy",
            ),
            By::Hinted { among } => (among, "the request's hint"),
            By::Rendezvous { among } => (among, "the conversation's own order"),
            _ => return None,
        };
        Some(Self { among, decided })
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
