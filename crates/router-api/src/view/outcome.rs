//! What `/v1/route` and `/v1/outcome` say beside a decision.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{ConversationId, DecisionId, DpRank, Endpoint, HeaderSpace, Worker};
use engine_wire::trtllm::{CONVERSATION_FIELD, conversation_params};
use engine_wire::{Carrier, Row, SALT_FIELD, takes_salt};
use serde::Serialize;
use serde_json::Value;

use super::decision::{DecisionView, OutcomeView};
use super::waterfall::WaterfallView;
use crate::ledger::Entry;

/// What `/v1/route` answers.
#[derive(Serialize)]
pub(crate) struct RouteView {
    #[serde(flatten)]
    pub(crate) decision: DecisionView,
    /// What the request needs to run where it was decided; none where the worker has gone meanwhile.
    pub(crate) send: Option<SendView>,
    /// Whether a request would wait in the router first: every target is past its limit.
    pub(crate) would_wait: bool,
    /// How long its outcome is waited for; none where nothing is committed.
    pub(crate) lease_seconds: Option<u64>,
}

/// What is added to a request before its engine gets it.
#[derive(Serialize)]
pub(crate) struct SendView {
    headers: BTreeMap<&'static str, String>,
    fields: BTreeMap<&'static str, Value>,
}

impl SendView {
    /// Of a request for `rank` of `worker`, or for whichever its engine chooses.
    pub(crate) fn of(
        worker: &Worker,
        endpoint: Endpoint,
        rank: Option<DpRank>,
        conversation: Option<&ConversationId>,
        salt: Option<&str>,
    ) -> Self {
        let mut send = Self {
            headers: BTreeMap::new(),
            fields: BTreeMap::new(),
        };
        if let Some(number) = rank.and_then(|it| number(worker, it)) {
            match Row::of(worker.engine, &worker.version, endpoint).carrier {
                Carrier::Header(name) => {
                    send.headers.insert(name, number.to_string());
                }
                Carrier::Field(name) => {
                    send.fields.insert(name, number.into());
                }
                Carrier::Nothing => {}
            }
        }
        if worker.capability.owns_bindings
            && matches!(endpoint, Endpoint::Chat | Endpoint::Completions)
            && let Some(conversation) = conversation
            && let Ok(named) = serde_json::from_str(&conversation_params(conversation))
        {
            send.fields.insert(CONVERSATION_FIELD, named);
        }
        if let Some(salt) = salt.filter(|_| takes_salt(worker, endpoint)) {
            send.fields.insert(SALT_FIELD, salt.into());
        }
        send
    }
}

/// The number by which `worker` is asked for a rank, where it takes one.
fn number(worker: &Worker, rank: DpRank) -> Option<u32> {
    match worker.capability.header_space {
        HeaderSpace::Global => Some(rank.get()),
        HeaderSpace::Local => rank.get().checked_sub(worker.start_rank),
        HeaderSpace::None => None,
    }
}

/// What `/v1/outcome` answers.
#[derive(Serialize)]
pub(crate) struct OutcomeAnswer {
    decision: String,
    /// Whether its outcome was told before, and this report changed nothing.
    repeated: bool,
    /// How long the next report is waited for; none once it is over.
    lease_seconds: Option<u64>,
    outcome: Option<OutcomeView>,
    waterfall: Option<WaterfallView>,
}

impl OutcomeAnswer {
    pub(crate) fn awaited(id: DecisionId, lease: Duration) -> Self {
        Self {
            decision: id.to_string(),
            repeated: false,
            lease_seconds: Some(lease.as_secs()),
            outcome: None,
            waterfall: None,
        }
    }

    /// `entry` is what is kept of it, if it still is.
    pub(crate) fn settled(id: DecisionId, entry: Option<&Entry>, repeated: bool) -> Self {
        let end = entry.and_then(|it| it.end.as_ref());
        let waterfall = end.and_then(|it| it.waterfall.as_ref());
        Self {
            decision: id.to_string(),
            repeated,
            lease_seconds: None,
            outcome: end.map(|it| OutcomeView::of(&it.outcome)),
            waterfall: waterfall.map(WaterfallView::of),
        }
    }
}
