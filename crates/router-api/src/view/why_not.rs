//! Why a request did not go somewhere else.

use std::str::FromStr;

use domain::{DpRank, Target, WorkerId};
use placement::Scored;
use routing::{Decision, Reason};
use serde::Serialize;

use super::names;
use crate::error::ApiError;
use crate::query::wrong;

/// A place asked about, as `w2/3`; of a text form of a target the incarnation is not looked at.
#[derive(Clone, Debug)]
pub(crate) struct WhyNot {
    worker: WorkerId,
    dp_rank: DpRank,
}

/// Why it was not chosen.
#[derive(Serialize)]
pub(crate) struct WhyNotView {
    pub(super) target: String,
    /// Where the request went, or where the policy would have had it.
    pub(super) against: Option<String>,
    /// Seconds that it was dearer; negative where it was cheaper. None where one of the two has no price.
    pub(super) dearer_seconds: Option<f64>,
    /// What each term adds to that, the dearest first.
    pub(super) terms: Vec<TermView>,
    /// What else was in the way, in words.
    pub(super) because: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct TermView {
    pub(super) name: &'static str,
    pub(super) dearer_seconds: f64,
}

impl FromStr for WhyNot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(Target {
            worker, dp_rank, ..
        }) = text.parse()
        {
            return Ok(Self { worker, dp_rank });
        }
        let parsed = text.rsplit_once('/').and_then(|(worker, dp_rank)| {
            let (worker, dp_rank) = (worker.parse().ok()?, dp_rank.parse().ok()?);
            Some(Self {
                worker,
                dp_rank: DpRank::new(dp_rank),
            })
        });
        parsed.ok_or_else(|| "write WORKER/RANK".to_owned())
    }
}

impl WhyNot {
    /// Refuses a place that was none when the decision was made.
    pub(crate) fn of(&self, decision: &Decision) -> Result<WhyNotView, ApiError> {
        let mut candidates = decision.snapshot.candidates.iter();
        let candidate = candidates
            .find(|it| it.target.worker == self.worker && it.target.dp_rank == self.dp_rank);
        let candidate = candidate.ok_or_else(|| {
            let (worker, dp_rank) = (&self.worker, self.dp_rank);
            let known = decision.snapshot.candidates.iter();
            let known: Vec<String> = known.take(16).map(|it| it.target.to_string()).collect();
            let known = known.join(", ");
            wrong(
                "why_not",
                &format!(
                    "{worker}/{dp_rank} was none of the model's ranks then; those were {known}"
                ),
            )
        })?;
        let target = &candidate.target;
        let chosen = decision.reserved_at();
        let preferred = decision.choice.as_ref().ok();
        let preferred = preferred.and_then(|it| it.place.target());
        let score = |of: &Target| decision.scores().iter().find(|it| it.target == *of);
        // A binding may lead to where nothing new may go: then the policy's choice is what there is to compare with.
        let against = chosen
            .filter(|it| score(it).is_some())
            .or(preferred)
            .filter(|it| *it != target);
        let prices = score(target).zip(against.and_then(score));
        let mut because = Vec::new();
        if chosen == Some(target) {
            because.push("it did go there".to_owned());
        }
        if let Some(barred) = candidate.barred {
            because.push(names::why_barred(barred).to_owned());
        }
        because.extend(names::why_state(candidate.state).map(str::to_owned));
        because.extend(overruled(decision, target));
        if let Some((own, other)) = prices
            && own.cost <= other.cost
            && chosen != Some(target)
            && decision.is_free()
        {
            let reason = names::reason(decision.reason);
            because.push(format!("it cost no more: what decided was {reason}"));
        }
        Ok(WhyNotView {
            target: target.to_string(),
            against: against.map(Target::to_string),
            dearer_seconds: prices.map(|(own, other)| own.cost - other.cost),
            terms: prices.map_or_else(Vec::new, |(own, other)| differences(own, other)),
            because,
        })
    }
}

/// Whether something other than the price decided.
fn overruled(decision: &Decision, target: &Target) -> Option<String> {
    if decision.reserved_at() == Some(target) {
        return None;
    }
    let place = names::place(&decision.place);
    match decision.reason {
        Reason::Policy(_) => None,
        Reason::Bound => Some(format!("the conversation is bound to {place}")),
        Reason::BoundForLackOfOthers => Some(format!(
            "the conversation is bound to {place}, which drains, and nothing else could serve"
        )),
        Reason::Excursion => Some(
            "the conversation is bound elsewhere, and this turn went for once where it would not wait".to_owned(),
        ),
        Reason::Followed => Some(format!("another router had bound the conversation to {place}")),
        Reason::Pinned => Some(format!("somebody insisted on {place}")),
    }
}

fn differences(own: &Scored, other: &Scored) -> Vec<TermView> {
    let pairs = own.terms.named().into_iter().zip(other.terms.named());
    let mut terms: Vec<TermView> = pairs
        .map(|((name, own), (_, other))| TermView {
            name,
            dearer_seconds: own - other,
        })
        .collect();
    terms.sort_by(|a, b| b.dearer_seconds.total_cmp(&a.dearer_seconds));
    terms
}
