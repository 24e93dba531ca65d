//! Answers of the Responses API, with which later turns go on by naming them.
//!
//! Each answer is bound, under its own id, to where it ran: a turn that names it joins that binding, whichever
//! router it comes to, and its own answer is bound in turn. No router keeps a table; what is bound is bounded,
//! durable and shared as all bindings are.

use std::sync::Arc;

use affinity::{ConversationKey, Evidence, Owner, TurnEnd, after_response};
use contracts::rpc::{Acquire, Confirm, Release};
use domain::{ConversationId, ModelName, Target, TenantId, Tokens};
use routing::Decision;

use crate::intake::Intake;
use crate::openai::ResponseId;
use crate::replica::{Replica, within_deadline};

/// An answer whose id is being waited for.
pub(crate) struct Chain {
    replica: Arc<Replica>,
    tenant: TenantId,
    model: ModelName,
    id: ResponseId,
}

impl Chain {
    /// None where the next turn is known by something else, or is bound to nothing.
    pub(crate) fn of(replica: &Arc<Replica>, intake: &Intake) -> Option<Self> {
        let chains = intake.chains && replica.binds(intake);
        chains.then(|| Self {
            replica: replica.clone(),
            tenant: intake.tenant.id.clone(),
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
        if let (Some((target, owner)), Some(id)) = (self.place(decision), after_response(&id)) {
            self.bind(id, target, owner).await;
        }
    }

    /// Somebody else has seen the id. False where it is none by which a conversation could go on.
    pub(crate) async fn told(&self, id: &str, decision: &Decision) -> bool {
        let Some(id) = after_response(id) else {
            return false;
        };
        if let Some((target, owner)) = self.place(decision) {
            self.bind(id, target, owner).await;
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
        target.map(|it| (it.clone(), owner))
    }

    async fn bind(&self, id: ConversationId, target: Target, owner: Owner) {
        let replica = &self.replica;
        let actor = replica.instance.clone();
        let key = ConversationKey {
            tenant: self.tenant.clone(),
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
            evidence: match owner {
                Owner::Router => Evidence::Asked,
                Owner::Engine => Evidence::None,
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
