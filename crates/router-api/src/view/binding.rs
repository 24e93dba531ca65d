//! Bindings as JSON: what is listed and exported is also what is imported.

use affinity::{Binding, BindingKey, BindingState, ConversationKey, Evidence, MoveReason, Owner};
use contracts::rpc::{Bound, Page};
use domain::{DpRank, Epoch, Target, Timestamp, Tokens};
use serde::{Deserialize, Serialize};

use super::names;

/// One binding.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct BindingView {
    tenant: String,
    model: String,
    conversation: String,
    worker: String,
    epoch: u64,
    /// None where the engine has chosen it and nothing has shown which.
    dp_rank: Option<u32>,
    /// Text form of the target, where its rank is known.
    target: Option<String>,
    owner: String,
    state: String,
    evidence: String,
    /// Why it left its last target; none for the first placement.
    reason: Option<String>,
    /// Since when it is at its target; where an import does not say, since the end of its last turn.
    #[serde(default)]
    since_seconds: Option<f64>,
    actor: String,
    held_tokens: u64,
    turns: u32,
    last_end_seconds: f64,
    /// At which revision it stands; says nothing in an import.
    #[serde(default)]
    revision: u64,
}

/// Some of the bindings, and where to go on.
#[derive(Serialize)]
pub(crate) struct PageView {
    bindings: Vec<BindingView>,
    /// To be given as `after`; none after the last page.
    next: Option<String>,
}

impl PageView {
    pub(crate) fn of(page: &Page) -> Self {
        Self {
            bindings: page.bindings.iter().map(BindingView::of).collect(),
            next: page.next.as_ref().map(BindingKey::to_string),
        }
    }
}

impl BindingView {
    pub(crate) fn of(bound: &Bound) -> Self {
        let binding = &bound.binding;
        let Target { worker, epoch, .. } = &binding.target;
        let known = Some(&binding.target).filter(|_| binding.knows_rank());
        let state = match binding.state {
            BindingState::Provisional { .. } => "provisional",
            BindingState::Confirmed => "confirmed",
        };
        Self {
            tenant: binding.key.tenant.to_string(),
            model: binding.key.model.to_string(),
            conversation: binding.key.conversation.to_string(),
            worker: worker.to_string(),
            epoch: epoch.get(),
            dp_rank: known.map(|it| it.dp_rank.get()),
            target: known.map(Target::to_string),
            owner: binding.owner.name().to_owned(),
            state: state.to_owned(),
            evidence: names::evidence(binding.evidence).to_owned(),
            reason: binding.moved.map(|it| names::moved(it).to_owned()),
            since_seconds: Some(binding.since.as_secs_f64()),
            actor: binding.actor.to_string(),
            held_tokens: binding.held.get(),
            turns: binding.turns,
            last_end_seconds: binding.last_end.as_secs_f64(),
            revision: bound.revision.0,
        }
    }

    /// What is imported: confirmed, whatever it was, because nothing is in flight for it here.
    pub(crate) fn read(&self) -> Result<Binding, String> {
        let field = |name: &str, why: &dyn std::fmt::Display| format!("{name}: {why}");
        let named = |name: &'static str, text: &str| format!("{name} {text:?} is unknown");
        let conversation = self.conversation.parse();
        let reason = match &self.reason {
            Some(text) => {
                let known = MoveReason::ALL
                    .into_iter()
                    .find(|it| names::moved(*it) == text);
                Some(known.ok_or_else(|| named("reason", text))?)
            }
            None => None,
        };
        let owners = [Owner::Router, Owner::Engine];
        let owner = owners.into_iter().find(|it| it.name() == self.owner);
        let grades = [
            Evidence::None,
            Evidence::Asked,
            Evidence::Event,
            Evidence::Answer,
        ];
        let evidence = grades
            .into_iter()
            .find(|it| names::evidence(*it) == self.evidence);
        let since_seconds = self.since_seconds.unwrap_or(self.last_end_seconds);
        let last_end = time("last_end_seconds", self.last_end_seconds)?;
        let since = time("since_seconds", since_seconds)?;
        let binding = Binding {
            key: ConversationKey {
                tenant: self.tenant.parse().map_err(|why| field("tenant", &why))?,
                model: self.model.parse().map_err(|why| field("model", &why))?,
                conversation: conversation.map_err(|why| field("conversation", &why))?,
            },
            target: Target {
                worker: self.worker.parse().map_err(|why| field("worker", &why))?,
                epoch: Epoch::new(self.epoch),
                dp_rank: DpRank::new(self.dp_rank.unwrap_or_default()),
            },
            owner: owner.ok_or_else(|| named("owner", &self.owner))?,
            state: BindingState::Confirmed,
            evidence: evidence.ok_or_else(|| named("evidence", &self.evidence))?,
            moved: reason,
            since,
            actor: self.actor.parse().map_err(|why| field("actor", &why))?,
            held: Tokens::new(self.held_tokens),
            turns: self.turns,
            last_end,
        };
        match self.dp_rank.is_none() && binding.knows_rank() {
            true => {
                Err("dp_rank: it is missing, and the evidence says that it is known".to_owned())
            }
            false => Ok(binding),
        }
    }
}

fn time(field: &str, seconds: f64) -> Result<Timestamp, String> {
    match seconds.is_finite() && seconds >= 0.0 {
        true => Ok(Timestamp::from_secs_f64(seconds)),
        false => Err(format!("{field}: it is no time")),
    }
}
