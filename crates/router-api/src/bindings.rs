//! Bindings as an operator sees them and changes them, part of the admin API.

use std::collections::BTreeSet;
use std::sync::Arc;

use affinity::{Binding, ConversationKey, Owner};
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, RawQuery, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use contracts::rpc::{Bound, CallError, Filter, Page, Reassign, Search, Unbind};
use domain::{
    ConversationId, DpRank, Drain, Epoch, InstanceId, ModelName, Target, TargetState, TenantId,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::error::{ApiError, excerpt};
use crate::query::{Query, wrong};
use crate::replica::Replica;
use crate::view::{BindingView, PageView};

/// Bindings listed at once unless said otherwise.
const LISTED: usize = 100;
/// The most listed at once: some 4 MB of JSON.
const MOST_LISTED: usize = 10_000;

/// Who acts through the admin API.
pub(crate) fn operator() -> InstanceId {
    InstanceId::new("operator").expect("a printable word is an id")
}

pub(crate) fn routes(replica: Arc<Replica>) -> Router {
    Router::new()
        .route("/api/v1/bindings", get(list).post(import))
        .route("/api/v1/bindings/{conversation}", get(one))
        .route("/api/v1/bindings/{conversation}/move", post(reassign))
        .route("/api/v1/bindings/{conversation}/release", post(release))
        .with_state(replica)
}

/// What says whose conversation is meant; its id alone says it where only one model has it.
const OF: &[&str] = &["tenant", "model"];
/// What a search can say; `conversation` is a part of the id, `state` is `provisional` or `confirmed`.
const WANTED: &[&str] = &[
    "tenant",
    "model",
    "conversation",
    "worker",
    "dp_rank",
    "state",
    "after",
    "limit",
];

/// Where a conversation shall go.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Destination {
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Imported {
    bindings: Vec<BindingView>,
}

async fn list(
    State(replica): State<Arc<Replica>>,
    RawQuery(query): RawQuery,
) -> Result<Json<PageView>, ApiError> {
    let mut search = wanted(&Query::read(query.as_deref(), WANTED)?)?;
    let wanted = search.limit;
    let mut found = Page::default();
    loop {
        search.limit = wanted - found.bindings.len();
        let page = replica.affinity.search(search.clone()).await;
        let page = page.map_err(silent)?;
        found.bindings.extend(page.bindings);
        found.next = page.next;
        if found.next.is_none() || found.bindings.len() == wanted {
            return Ok(Json(PageView::of(&found)));
        }
        search.after = page.next;
    }
}

/// Takes what was listed, as confirmed, where nothing is bound now and the time is not over.
async fn import(
    State(replica): State<Arc<Replica>>,
    body: Result<Json<Imported>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let Json(body) = body.map_err(|error| ApiError::invalid(excerpt(&error.body_text())))?;
    let bindings = body.bindings.iter().enumerate().map(|(number, view)| {
        let read = view.read();
        read.map_err(|why| {
            ApiError::invalid(format!("bindings[{number}]: {}", excerpt(&why.to_string())))
        })
    });
    // All of it makes sense, or nothing is taken.
    let bindings: Vec<Binding> = bindings.collect::<Result<_, _>>()?;
    let (mut imported, mut left_out) = (0_u64, 0_u64);
    for binding in bindings {
        let (target, turns) = (binding.target.clone(), binding.turns);
        let bound = replica.affinity.import(binding).await.map_err(silent)?;
        match bound.is_some_and(|it| it.binding.target == target && it.binding.turns == turns) {
            true => imported += 1,
            false => left_out += 1,
        }
    }
    Ok(Json(json!({"imported": imported, "left_out": left_out})))
}

async fn one(
    State(replica): State<Arc<Replica>>,
    Path(conversation): Path<String>,
    RawQuery(of): RawQuery,
) -> Result<Json<BindingView>, ApiError> {
    let bound = replica.bound_of(&conversation, of.as_deref()).await?;
    Ok(Json(BindingView::of(&bound)))
}

async fn reassign(
    State(replica): State<Arc<Replica>>,
    Path(conversation): Path<String>,
    RawQuery(of): RawQuery,
    body: Result<Json<Destination>, JsonRejection>,
) -> Result<Json<BindingView>, ApiError> {
    let Json(Destination { to }) =
        body.map_err(|error| ApiError::invalid(excerpt(&error.body_text())))?;
    let bound = replica.bound_of(&conversation, of.as_deref()).await?;
    let to = replica.destination(&to, &bound.binding)?;
    let moved = replica.affinity.reassign(Reassign {
        key: bound.binding.key,
        to,
        actor: operator(),
    });
    Ok(Json(BindingView::of(&moved.await.map_err(silent)?)))
}

async fn release(
    State(replica): State<Arc<Replica>>,
    Path(conversation): Path<String>,
    RawQuery(of): RawQuery,
) -> Result<Json<BindingView>, ApiError> {
    let bound = replica.bound_of(&conversation, of.as_deref()).await?;
    let key = bound.binding.key.clone();
    let actor = operator();
    let released = replica.affinity.unbind(Unbind { key, actor }).await;
    released.map_err(silent)?;
    Ok(Json(BindingView::of(&bound)))
}

/// What a client can say of a session that is over.
const OVER: &[&str] = &["session_id", "model"];

/// Releases what is bound under the id of a session that is over, for each model unless one is named. One that is not
/// bound is over already.
pub(crate) async fn finish(
    Caller(tenant): Caller,
    State(replica): State<Arc<Replica>>,
    RawQuery(over): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let over = Query::read(over.as_deref(), OVER)?;
    let Some(session) = over.text("session_id") else {
        return Err(wrong("session_id", &"say which session is over"));
    };
    let id = ConversationId::new(session).map_err(|error| wrong("session_id", &error))?;
    let mut released = 0_u64;
    for bound in replica
        .bound_as(&tenant.id, &id, over.parsed("model")?)
        .await?
    {
        let key = bound.binding.key;
        let actor = InstanceId::new("client").expect("a printable word is an id");
        let unbound = replica.affinity.unbind(Unbind { key, actor }).await;
        unbound.map_err(silent)?;
        released += 1;
    }
    Ok(Json(json!({"session_id": session, "released": released})))
}

fn wanted(query: &Query) -> Result<Search, ApiError> {
    let limit = query.parsed("limit")?.unwrap_or(LISTED);
    if !(1..=MOST_LISTED).contains(&limit) {
        return Err(wrong("limit", &format!("list 1 to {MOST_LISTED} at once")));
    }
    let confirmed = match query.text("state") {
        None => None,
        Some("confirmed") => Some(true),
        Some("provisional") => Some(false),
        Some(_) => return Err(wrong("state", &"choose provisional or confirmed")),
    };
    Ok(Search {
        after: query.parsed("after")?,
        limit,
        filter: Filter {
            tenant: query.parsed("tenant")?,
            model: query.parsed("model")?,
            conversation: query.text("conversation").map(str::to_owned),
            worker: query.parsed("worker")?,
            dp_rank: query.parsed("dp_rank")?.map(DpRank::new),
            confirmed,
        },
    })
}

/// The refusal of an id that does not say which of these is meant.
fn several(found: &[Bound]) -> ApiError {
    let keys = found.iter().map(|it| &it.binding.key);
    let tenants: BTreeSet<&str> = keys.clone().map(|it| it.tenant.as_str()).collect();
    let models: BTreeSet<&str> = keys.map(|it| it.model.as_str()).collect();
    let (what, names) = match tenants.len() {
        1 => ("model", models),
        _ => ("tenant", tenants),
    };
    let names: Vec<&str> = names.into_iter().collect();
    wrong(
        what,
        &format!(
            "several {what}s have it: choose one of {} (`rankway move --{what}`)",
            names.join(", ")
        ),
    )
}

impl Replica {
    /// The bindings of a conversation: one of `model`, or of each.
    async fn bound_as(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        model: Option<ModelName>,
    ) -> Result<Vec<Bound>, ApiError> {
        let models: Vec<ModelName> = match model {
            Some(model) => vec![model],
            None => self.mind.lock().models().into_iter().collect(),
        };
        let mut found = Vec::new();
        for model in models {
            let key = ConversationKey {
                tenant: tenant.clone(),
                model,
                conversation: conversation.clone(),
            };
            found.extend(self.affinity.get(&key).await.map_err(silent)?);
        }
        Ok(found)
    }

    /// The binding of a conversation by its id alone, where that says which.
    async fn bound_of(&self, id: &str, of: Option<&str>) -> Result<Bound, ApiError> {
        let of = Query::read(of, OF)?;
        let conversation =
            ConversationId::new(id).map_err(|error| wrong("conversation", &error))?;
        let tenants = match of.parsed("tenant")? {
            Some(tenant) => BTreeSet::from([tenant]),
            // What was bound before tenants were set is there still.
            None => {
                let mut all = self.tenants.ids();
                all.insert(self.config.default_tenant.clone());
                all
            }
        };
        let mut found = Vec::new();
        for tenant in &tenants {
            let bound = self.bound_as(tenant, &conversation, of.parsed("model")?);
            found.extend(bound.await?);
        }
        if found.len() > 1 {
            return Err(several(&found));
        }
        found.pop().ok_or_else(|| ApiError::UnknownPath {
            path: match tenants.first().filter(|_| tenants.len() == 1) {
                Some(tenant) => format!(
                    "binding of conversation {:?} of tenant {tenant}",
                    excerpt(id)
                ),
                None => format!("binding of conversation {:?} of any tenant", excerpt(id)),
            },
        })
    }

    /// A target written `WORKER/RANK` or `WORKER#EPOCH/RANK` that `binding` may be moved to.
    fn destination(&self, text: &str, binding: &Binding) -> Result<Target, ApiError> {
        let refused = |why: &str| wrong("to", &format!("{:?} {why}", excerpt(text)));
        let read = || {
            let (place, rank) = text.rsplit_once('/')?;
            let (worker, epoch) = match place.split_once('#') {
                Some((worker, epoch)) => (worker, Some(Epoch::new(epoch.parse().ok()?))),
                None => (place, None),
            };
            Some((worker, epoch, DpRank::new(rank.parse().ok()?)))
        };
        let (worker, epoch, dp_rank) =
            read().ok_or_else(|| refused("is no target: write WORKER/RANK, such as w1/0"))?;
        let router = self.mind.lock();
        let known = worker.parse().ok();
        let worker = known.as_ref().and_then(|it| router.worker(it));
        let worker = worker.filter(|it| it.model == binding.key.model && it.owns(dp_rank));
        let Some(worker) = worker else {
            let model = &binding.key.model;
            return Err(refused(&format!(
                "is no target of model {model}: `rankway targets ls` lists them"
            )));
        };
        let now = router.epoch(&worker.id).unwrap_or(worker.epoch);
        if epoch.is_some_and(|it| it != now) {
            return Err(refused(&format!(
                "is of another incarnation: the present one is {now}"
            )));
        }
        match router.state(worker, dp_rank) {
            TargetState::Ready | TargetState::Suspect | TargetState::Partial => {}
            TargetState::Draining | TargetState::Leaving => {
                let place = Drain::place_of(&worker.id, Some(dp_rank));
                return Err(refused(&format!(
                    "is drained: choose another, or `rankway drain --undo` it (`rankway workers ls` says what is \
                     drained of {place})"
                )));
            }
            state => return Err(refused(&format!("is {}", state.name()))),
        }
        if binding.target.worker == worker.id {
            if binding.owner == Owner::Engine {
                return Err(refused(
                    "is at the same worker, whose engine chooses among its ranks",
                ));
            }
            if worker.capability.owns_bindings {
                return Err(refused(
                    "is at the same worker, whose engine keeps a conversation on its first rank",
                ));
            }
        }
        Ok(Target {
            worker: worker.id.clone(),
            epoch: now,
            dp_rank,
        })
    }
}

/// What the store did not do.
fn silent(error: CallError) -> ApiError {
    match error {
        CallError::FailedPrecondition { why } | CallError::InvalidArgument { why } => {
            ApiError::invalid(why)
        }
        CallError::Unavailable { .. }
        | CallError::Unreached { .. }
        | CallError::DeadlineExceeded { .. } => ApiError::Unavailable {
            why: error.to_string(),
        },
    }
}
