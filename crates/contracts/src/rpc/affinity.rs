//! Asking for, and changing, the target of a conversation.

use affinity::{
    Binding, BindingKey, BindingState, ConversationKey, Evidence, MoveReason, Owner, TurnEnd,
};
use async_trait::async_trait;
use bus::Revision;
use domain::{DpRank, InstanceId, ModelName, Target, TenantId, WorkerId};

use super::CallError;

/// The affinity store: the only writer of bindings.
#[async_trait]
pub trait Affinity: Send + Sync {
    /// The live binding of a conversation.
    async fn get(&self, key: &ConversationKey) -> Result<Option<Bound>, CallError>;

    /// Binds a conversation provisionally, or joins the binding it already has. Of two callers racing on a
    /// first turn exactly one creates it; the other is answered the winner's and follows. A join takes a
    /// lease like a creation; each acquire needs one [`Affinity::release`].
    async fn acquire(&self, request: Acquire) -> Result<Bound, CallError>;

    /// Says that a first byte was served, and where as far as is known.
    async fn confirm(&self, request: Confirm) -> Result<Bound, CallError>;

    /// Binds a conversation to another target, provisionally; the lease counts as an acquire. Fails with
    /// [`CallError::FailedPrecondition`] when the binding is no longer at `at`.
    async fn rebind(&self, request: Move) -> Result<Bound, CallError>;

    /// Gives back the lease of one acquire or rebind.
    async fn release(&self, request: Release) -> Result<(), CallError>;

    /// Renews the leases of conversations that have requests in flight. A lease lives 15 s from its acquire
    /// or last renewal, so a router names all of its conversations every 5 s; what it no longer names ends
    /// by itself, and what a restarted store has forgotten is taken up again.
    async fn renew(&self, request: Renew) -> Result<(), CallError>;

    /// All live bindings, at most `limit`.
    async fn list(&self, limit: usize) -> Result<Vec<Bound>, CallError>;

    /// Live bindings that fit a filter, a page at a time, in the order of their keys. A page may hold fewer than
    /// asked for, or none, although more follow: only one without a `next` is the last.
    async fn search(&self, search: Search) -> Result<Page, CallError>;

    /// An operator puts a conversation at a target: its next turn goes there. Fails with
    /// [`CallError::FailedPrecondition`] when it is not bound.
    async fn reassign(&self, request: Reassign) -> Result<Bound, CallError>;

    /// An operator ends a binding: the next turn is placed as a first one. Fails like [`Affinity::reassign`].
    async fn unbind(&self, request: Unbind) -> Result<(), CallError>;

    /// Takes a binding as it was exported, if its conversation has none and its time is not over; answers what the
    /// conversation is bound to now.
    async fn import(&self, binding: Binding) -> Result<Option<Bound>, CallError>;
}

/// What is looked for among the bindings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Only keys beyond this one: the `next` of the page before.
    pub after: Option<BindingKey>,
    /// The most bindings to answer.
    pub limit: usize,
    /// Which of them.
    pub filter: Filter,
}

/// Which bindings are meant: those that fit everything said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Whose.
    pub tenant: Option<TenantId>,
    /// With which model.
    pub model: Option<ModelName>,
    /// A text that the conversation's id contains.
    pub conversation: Option<String>,
    /// At which worker, in whatever incarnation.
    pub worker: Option<WorkerId>,
    /// At which rank.
    pub dp_rank: Option<DpRank>,
    /// Whether anything has been served there.
    pub confirmed: Option<bool>,
}

impl Filter {
    /// Whether a binding is meant. One whose rank is not known is at none.
    pub fn fits(&self, binding: &Binding) -> bool {
        let Binding { key, target, .. } = binding;
        let confirmed = binding.state == BindingState::Confirmed;
        let rank = Some(target.dp_rank).filter(|_| binding.knows_rank());
        self.tenant.as_ref().is_none_or(|it| *it == key.tenant)
            && self.model.as_ref().is_none_or(|it| *it == key.model)
            && self.worker.as_ref().is_none_or(|it| *it == target.worker)
            && self.dp_rank.is_none_or(|it| Some(it) == rank)
            && self.confirmed.is_none_or(|it| it == confirmed)
            && self
                .conversation
                .as_ref()
                .is_none_or(|it| key.conversation.as_str().contains(it.as_str()))
    }
}

/// Some of the bindings looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The bindings.
    pub bindings: Vec<Bound>,
    /// Where to go on; none where there are no more.
    pub next: Option<BindingKey>,
}

/// A conversation that an operator moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reassign {
    /// The conversation.
    pub key: ConversationKey,
    /// Where it shall be.
    pub to: Target,
    /// Who says so.
    pub actor: InstanceId,
}

/// A conversation whose binding an operator ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbind {
    /// The conversation.
    pub key: ConversationKey,
    /// Who says so.
    pub actor: InstanceId,
}

/// A binding and the revision it stands at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The binding.
    pub binding: Binding,
    /// Its revision.
    pub revision: Revision,
}

/// A turn about to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// The conversation.
    pub key: ConversationKey,
    /// Where it would be placed if it has no binding.
    pub proposed: Target,
    /// Who decides the rank.
    pub owner: Owner,
    /// Who asks.
    pub actor: InstanceId,
}

/// A first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// The conversation.
    pub key: ConversationKey,
    /// The target the turn was sent to: where that is no longer the bound one, what was observed says
    /// nothing against the binding.
    pub asked: Target,
    /// The target that served it, the asked one unless something shows another.
    pub observed: Target,
    /// What shows that.
    pub evidence: Evidence,
    /// Who says so.
    pub actor: InstanceId,
}

/// A binding to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The conversation.
    pub key: ConversationKey,
    /// The revision the caller has seen.
    pub at: Revision,
    /// Where it shall be.
    pub to: Target,
    /// Why.
    pub reason: MoveReason,
    /// Who asks.
    pub actor: InstanceId,
}

/// The end of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The conversation.
    pub key: ConversationKey,
    /// The target the turn ran on, or would have.
    pub target: Target,
    /// How it ended.
    pub end: TurnEnd,
    /// Who says so.
    pub actor: InstanceId,
}

/// A router's conversations with requests in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// Who holds the leases.
    pub actor: InstanceId,
    /// For these, each named once.
    pub keys: Vec<ConversationKey>,
}
