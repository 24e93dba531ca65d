//! Answers of the Responses API, with which later turns go on by naming them.
//!
//! Each answer is bound, under its own id, to where it ran: a turn that names it joins that binding, whichever
//! router it comes to, and its own answer is bound in turn. No router keeps a table; what is bound is bounded,
//! durable and shared as all bindings are.
//!
//! Engines that store answers know no tenants. Where there are several, an answer is bound under what no client can
//! say, and who names one goes on with it only if it is bound for the same tenant: see [`Replica::goes_on`].

use std::sync::Arc;

use affinity::{Claim, ConversationKey, Evidence, Owner, TurnEnd, after_response};
use contracts::rpc::{Acquire, Confirm, Release};
use domain::{ConversationId, DpRank, Endpoint, ModelName, Target, Tokens};
use placement::Place;
use routing::Decision;

use crate::error::{ApiError, excerpt};
use crate::intake::Intake;
use crate::openai::{Fields, ResponseId};
use crate::replica::{Replica, within_deadline};
use crate::tenant::Tenant;

/// An answer whose id is being waited for.
pub(crate) struct Chain {
    replica: Arc<Replica>,
    tenant: Arc<Tenant>,
    model: ModelName,
    id: ResponseId,
}

impl Chain {
    /// None where the next turn is known by something else, or is bound to nothing.
    pub(crate) fn of(replica: &Arc<Replica>, intake: &Intake) -> Option<Self> {
        let chains = intake.chains && (replica.binds(intake) || intake.tenant.is_named());
        chains.then(|| Self {
            replica: replica.clone(),
            tenant: intake.tenant.clone(),
            model: intake.model.clone(),
            id: ResponseId::default(),
        })
    }

    /// Looks for the id in what comes next of the answer. The next turn may come as soon as the client has read
    /// it, so the chunk that holds it waits for the store, 50 ms at most.
    pub(crate) async fn see(&mut self, chunk: &[u8], decision: &Decision) {
        let Some(id) = self.id.see(chunk) else {
            return;
        };
        if let (Some((target, owner)), Some(id)) = (
            self.place(decision),
            self.replica.answer_of(&self.tenant, &id),
        ) {
            self.bind(id, (target, owner), decision.target().is_some())
                .await;
        }
    }

    /// Somebody else has seen the id. False where it is none by which a conversation could go on.
    pub(crate) async fn told(&self, id: &str, decision: &Decision) -> bool {
        let Some(id) = after_response(id) else {
            return false;
        };
        if let Some((target, owner)) = self.place(decision) {
            self.bind(id, (target, owner), decision.target().is_some())
                .await;
        }
        true
    }

    /// Where the answer comes from, as far as is known by now: not which rank, where its engine ignores those
    /// that are asked for; of an engine that owns its conversations, at least the worker.
    fn place(&self, decision: &Decision) -> Option<(Target, Owner)> {
        let owner = self.replica.mind.lock().owner(decision.place.worker());
        let target = match owner {
            Owner::Router => decision.target(),
            Owner::Engine => decision.reserved_at(),
        };
        let target = target.cloned();
        let target = target.or_else(|| self.tenant.is_named().then(|| kept_at(decision)));
        target.map(|it| (it, owner))
    }

    async fn bind(&self, id: ConversationId, (target, owner): (Target, Owner), is_asked: bool) {
        let replica = &self.replica;
        let actor = replica.instance.clone();
        let key = ConversationKey {
            tenant: self.tenant.id.clone(),
            model: self.model.clone(),
            conversation: id,
        };
        let acquired = within_deadline(replica.affinity.acquire(Acquire {
            key: key.clone(),
            proposed: target.clone(),
            owner,
            actor: actor.clone(),
        }));
        if acquired.await.is_err() {
            replica.metrics.untold.inc();
            return;
        }
        replica.leases.took(&key);
        replica.leases.confirm(Confirm {
            key: key.clone(),
            asked: target.clone(),
            observed: target.clone(),
            evidence: match (owner, is_asked) {
                (Owner::Router, true) => Evidence::Asked,
                (Owner::Router, false) | (Owner::Engine, _) => Evidence::None,
            },
            actor: actor.clone(),
        });
        // What it leaves there is not known before its end.
        let held = Tokens::ZERO;
        replica.leases.release(Release {
            key,
            target,
            end: TurnEnd::Served { held },
            actor,
        });
    }
}

/// The worker that may store an answer, where nothing says which of its ranks gave it.
fn kept_at(decision: &Decision) -> Target {
    match (decision.reserved_at(), &decision.place) {
        (Some(target), _) | (None, Place::Target(target)) => target.clone(),
        (None, Place::Worker { worker, epoch }) => Target {
            worker: worker.clone(),
            epoch: *epoch,
            dp_rank: DpRank::new(0),
        },
    }
}

impl Replica {
    /// The conversation that goes on with an answer of this id, which this router has seen; none where that is no id.
    fn answer_of(&self, tenant: &Tenant, id: &str) -> Option<ConversationId> {
        match self.tenants.own_answer(tenant, id) {
            Some(own) => after_response(&own),
            None => after_response(id),
        }
    }

    /// Refuses a request that goes on with an answer which is not known to be its tenant's, where there are several:
    /// its engine would read the other's conversation to it. Nothing tells whether there is such an answer. While
    /// the affinity store is silent nobody can say whose it is, and so it is refused too.
    pub(crate) async fn goes_on(
        &self,
        intake: &mut Intake,
        fields: &Fields<'_>,
    ) -> Result<(), ApiError> {
        if !intake.tenant.is_named() || intake.endpoint != Endpoint::Responses {
            return Ok(());
        }
        let Some(named) = fields.previous_response()? else {
            return Ok(());
        };
        let unknown = || ApiError::UnknownResponse {
            id: excerpt(&named).into_owned(),
        };
        let own = self.answer_of(&intake.tenant, &named);
        let key = intake.key(own.ok_or_else(unknown)?);
        let bound = within_deadline(self.affinity.get(&key)).await;
        let bound = bound.map_err(|_| ApiError::Unavailable {
            why: "the affinity store is silent, and nobody else can say whose the previous response is".to_owned(),
        })?;
        bound.ok_or_else(unknown)?;
        for claim in &mut intake.claims {
            if let Claim::Named(named) = claim
                && !named.keeps_its_id()
            {
                named.id = key.conversation.clone();
            }
        }
        Ok(())
    }
}
