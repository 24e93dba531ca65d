//! What the owner is asked, and how it answers.

use affinity::{Binding, BindingKey, Event};
use bus::Revision;
use contracts::rpc::{
    Acquire, Bound, CallError, Confirm, Move, Page, Reassign, Release, Search, Unbind,
};
use domain::InstanceId;
use tokio::sync::oneshot;

/// The name under which callers know this service.
pub(crate) const SERVICE: &str = "affinity-store";

/// Where an answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// One call.
pub(crate) enum Message {
    /// About one conversation.
    One(BindingKey, Ask),
    /// About all that one router has in flight.
    Renew {
        actor: InstanceId,
        keys: Vec<BindingKey>,
        reply: Reply<()>,
    },
    /// About all bindings.
    List {
        limit: usize,
        reply: Reply<Vec<Bound>>,
    },
    /// About those that fit.
    Search { search: Search, reply: Reply<Page> },
}

/// Something to be done about one conversation. One at a time is under way for each.
pub(crate) enum Ask {
    Get(Reply<Option<Bound>>),
    Acquire(Acquire, Reply<Bound>),
    Confirm(Confirm, Reply<Bound>),
    Rebind(Move, Reply<Bound>),
    Release(Release, Reply<()>),
    Reassign(Reassign, Reply<Bound>),
    Unbind(Unbind, Reply<()>),
    Import(Box<Binding>, Reply<Option<Bound>>),
    Renew(InstanceId),
    /// Its time may be over.
    Lapse,
    /// It has been idle for longest, and there are too many.
    MakeRoom,
    /// The table has changed, to this revision at least.
    Refresh(Option<Revision>),
}

impl Ask {
    /// What happens to the binding; none where it is only read.
    pub(crate) fn event(&self) -> Option<Event<'_>> {
        Some(match self {
            Self::Get(_) | Self::Refresh(_) => return None,
            Self::Acquire(request, _) => Event::Acquire {
                key: &request.key,
                proposed: &request.proposed,
                owner: request.owner,
                actor: &request.actor,
            },
            Self::Confirm(request, _) => Event::Confirm {
                asked: &request.asked,
                observed: &request.observed,
                evidence: request.evidence,
                actor: &request.actor,
            },
            Self::Rebind(request, _) => Event::Rebind {
                to: &request.to,
                reason: request.reason,
                actor: &request.actor,
            },
            Self::Release(request, _) => Event::Release {
                target: &request.target,
                end: request.end,
                actor: &request.actor,
            },
            Self::Reassign(request, _) => Event::Reassign {
                to: &request.to,
                actor: &request.actor,
            },
            Self::Unbind(..) => Event::Unbind,
            Self::Import(binding, _) => Event::Import { binding },
            Self::Renew(actor) => Event::Renew { actor },
            Self::Lapse => Event::Lapse,
            Self::MakeRoom => Event::MakeRoom,
        })
    }

    /// Whether nobody waits for what would only be done for the one who waits. What was served or has ended
    /// is true whether or not its reporter is still there.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Get(reply) => reply.is_closed(),
            Self::Acquire(_, reply) | Self::Rebind(_, reply) => reply.is_closed(),
            Self::Confirm(..)
            | Self::Release(..)
            | Self::Reassign(..)
            | Self::Unbind(..)
            | Self::Import(..)
            | Self::Renew(_)
            | Self::Lapse
            | Self::MakeRoom
            | Self::Refresh(_) => false,
        }
    }

    /// Answers what now stands. A caller that has left meanwhile is answered nothing: what it took is
    /// returned, to be given back.
    pub(crate) fn answer(self, bound: Option<Bound>) -> Option<Release> {
        let (reply, taken) = match self {
            // A reader or reporter that has left misses nothing.
            Self::Get(reply) | Self::Import(_, reply) => {
                let _ = reply.send(Ok(bound));
                return None;
            }
            Self::Release(_, reply) | Self::Unbind(_, reply) => {
                let _ = reply.send(Ok(()));
                return None;
            }
            Self::Renew(_) | Self::Lapse | Self::MakeRoom | Self::Refresh(_) => return None,
            Self::Confirm(_, reply) | Self::Reassign(_, reply) => (reply, None),
            Self::Acquire(request, reply) => (reply, Some((request.key, request.actor))),
            Self::Rebind(request, reply) => (reply, Some((request.key, request.actor))),
        };
        let target = bound.as_ref().map(|it| it.binding.target.clone());
        let answer = bound.ok_or_else(not_bound);
        let left = reply.send(answer).is_err();
        let (key, actor) = taken.filter(|_| left)?;
        Some(Release {
            key,
            target: target?,
            end: affinity::TurnEnd::Unserved,
            actor,
        })
    }

    /// Answers that it was not done. Whoever has left does not mind.
    pub(crate) fn fail(self, error: CallError) {
        match self {
            Self::Get(reply) | Self::Import(_, reply) => drop(reply.send(Err(error))),
            Self::Acquire(_, reply)
            | Self::Confirm(_, reply)
            | Self::Rebind(_, reply)
            | Self::Reassign(_, reply) => drop(reply.send(Err(error))),
            Self::Release(_, reply) | Self::Unbind(_, reply) => drop(reply.send(Err(error))),
            Self::Renew(_) | Self::Lapse | Self::MakeRoom | Self::Refresh(_) => {}
        }
    }
}

/// There is nothing to confirm or to move.
pub(crate) fn not_bound() -> CallError {
    CallError::FailedPrecondition {
        why: "the conversation is not bound".to_owned(),
    }
}
