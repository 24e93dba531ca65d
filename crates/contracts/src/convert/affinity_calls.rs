//! The calls of `affinity.proto`.

use affinity::{Binding, BindingKey, ConversationKey, TurnEnd};
use bus::Revision;
use bytes::Bytes;
use domain::{DpRank, InstanceId, Target, Tokens};

use super::{Wire, invalid, read_enum, required, wire};
use crate::DecodeError;
use crate::rpc::{
    Acquire, Bound, Confirm, Filter, Move, Page, Reassign, Release, Renew, Search, Unbind,
};

impl Wire for ConversationKey {
    const WHAT: &'static str = "conversation key";
    type Message = wire::ConversationKey;

    fn to_wire(&self) -> wire::ConversationKey {
        wire::ConversationKey {
            tenant: self.tenant.to_string(),
            model: self.model.to_string(),
            conversation: self.conversation.to_string(),
        }
    }

    fn from_wire(message: wire::ConversationKey) -> Result<Self, DecodeError> {
        let tenant = message.tenant.parse();
        let model = message.model.parse();
        let conversation = message.conversation.parse();
        Ok(Self {
            tenant: tenant.map_err(|why| invalid::<Self>("tenant", why))?,
            model: model.map_err(|why| invalid::<Self>("model", why))?,
            conversation: conversation.map_err(|why| invalid::<Self>("conversation", why))?,
        })
    }
}

fn key<T: Wire>(key: Option<wire::ConversationKey>) -> Result<ConversationKey, DecodeError> {
    ConversationKey::from_wire(required::<T, _>("key", key)?)
}

fn target<T: Wire>(
    field: &'static str,
    target: Option<wire::Target>,
) -> Result<Target, DecodeError> {
    Target::from_wire(required::<T, _>(field, target)?)
}

fn actor<T: Wire>(actor: &str) -> Result<InstanceId, DecodeError> {
    InstanceId::new(actor).map_err(|why| invalid::<T>("actor", why))
}

impl Wire for Bound {
    const WHAT: &'static str = "bound";
    type Message = wire::Bound;

    fn to_wire(&self) -> wire::Bound {
        wire::Bound {
            binding: Some(self.binding.to_wire()),
            revision: self.revision.0,
        }
    }

    fn from_wire(message: wire::Bound) -> Result<Self, DecodeError> {
        Ok(Self {
            binding: Binding::from_wire(required::<Self, _>("binding", message.binding)?)?,
            revision: Revision(message.revision),
        })
    }
}

impl Wire for Option<Bound> {
    const WHAT: &'static str = "bound or not";
    type Message = wire::MaybeBound;

    fn to_wire(&self) -> wire::MaybeBound {
        wire::MaybeBound {
            bound: self.as_ref().map(Wire::to_wire),
        }
    }

    fn from_wire(message: wire::MaybeBound) -> Result<Self, DecodeError> {
        message.bound.map(Bound::from_wire).transpose()
    }
}

impl Wire for Vec<Bound> {
    const WHAT: &'static str = "bindings";
    type Message = wire::BoundList;

    fn to_wire(&self) -> wire::BoundList {
        wire::BoundList {
            bound: self.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: wire::BoundList) -> Result<Self, DecodeError> {
        message.bound.into_iter().map(Bound::from_wire).collect()
    }
}

impl Wire for Acquire {
    const WHAT: &'static str = "acquire";
    type Message = wire::AcquireRequest;

    fn to_wire(&self) -> wire::AcquireRequest {
        wire::AcquireRequest {
            key: Some(self.key.to_wire()),
            proposed: Some(self.proposed.to_wire()),
            owner: wire::Owner::from(self.owner).into(),
            actor: self.actor.to_string(),
        }
    }

    fn from_wire(message: wire::AcquireRequest) -> Result<Self, DecodeError> {
        Ok(Self {
            key: key::<Self>(message.key)?,
            proposed: target::<Self>("proposed", message.proposed)?,
            owner: read_enum::<Self, wire::Owner, _>("owner", message.owner)?,
            actor: actor::<Self>(&message.actor)?,
        })
    }
}

impl Wire for Confirm {
    const WHAT: &'static str = "confirm";
    type Message = wire::ConfirmRequest;

    fn to_wire(&self) -> wire::ConfirmRequest {
        wire::ConfirmRequest {
            key: Some(self.key.to_wire()),
            asked: Some(self.asked.to_wire()),
            observed: Some(self.observed.to_wire()),
            evidence: wire::Evidence::from(self.evidence).into(),
            actor: self.actor.to_string(),
        }
    }

    fn from_wire(message: wire::ConfirmRequest) -> Result<Self, DecodeError> {
        Ok(Self {
            key: key::<Self>(message.key)?,
            asked: target::<Self>("asked", message.asked)?,
            observed: target::<Self>("observed", message.observed)?,
            evidence: read_enum::<Self, wire::Evidence, _>("evidence", message.evidence)?,
            actor: actor::<Self>(&message.actor)?,
        })
    }
}

impl Wire for Move {
    const WHAT: &'static str = "move";
    type Message = wire::MoveRequest;

    fn to_wire(&self) -> wire::MoveRequest {
        wire::MoveRequest {
            key: Some(self.key.to_wire()),
            at: self.at.0,
            to: Some(self.to.to_wire()),
            reason: wire::MoveReason::from(self.reason).into(),
            actor: self.actor.to_string(),
        }
    }

    fn from_wire(message: wire::MoveRequest) -> Result<Self, DecodeError> {
        Ok(Self {
            key: key::<Self>(message.key)?,
            at: Revision(message.at),
            to: target::<Self>("to", message.to)?,
            reason: read_enum::<Self, wire::MoveReason, _>("reason", message.reason)?,
            actor: actor::<Self>(&message.actor)?,
        })
    }
}

impl Wire for Release {
    const WHAT: &'static str = "release";
    type Message = wire::ReleaseRequest;

    fn to_wire(&self) -> wire::ReleaseRequest {
        use wire::release_request::{End, Served, Unserved};
        let end = match self.end {
            TurnEnd::Served { held } => End::Served(Served {
                held_tokens: held.get(),
            }),
            TurnEnd::Unserved => End::Unserved(Unserved {}),
        };
        wire::ReleaseRequest {
            key: Some(self.key.to_wire()),
            target: Some(self.target.to_wire()),
            end: Some(end),
            actor: self.actor.to_string(),
        }
    }

    fn from_wire(message: wire::ReleaseRequest) -> Result<Self, DecodeError> {
        use wire::release_request::End;
        let end = match required::<Self, _>("end", message.end)? {
            End::Served(it) => TurnEnd::Served {
                held: Tokens::new(it.held_tokens),
            },
            End::Unserved(_) => TurnEnd::Unserved,
        };
        Ok(Self {
            key: key::<Self>(message.key)?,
            target: target::<Self>("target", message.target)?,
            end,
            actor: actor::<Self>(&message.actor)?,
        })
    }
}

impl Wire for Renew {
    const WHAT: &'static str = "renew";
    type Message = wire::RenewRequest;

    fn to_wire(&self) -> wire::RenewRequest {
        wire::RenewRequest {
            actor: self.actor.to_string(),
            keys: self.keys.iter().map(Wire::to_wire).collect(),
        }
    }

    fn from_wire(message: wire::RenewRequest) -> Result<Self, DecodeError> {
        let keys = message.keys.into_iter().map(ConversationKey::from_wire);
        Ok(Self {
            actor: actor::<Self>(&message.actor)?,
            keys: keys.collect::<Result<_, _>>()?,
        })
    }
}

fn place(key: BindingKey) -> Bytes {
    Bytes::copy_from_slice(&key.to_bytes())
}

fn read_place<T: Wire>(
    field: &'static str,
    bytes: Option<Bytes>,
) -> Result<Option<BindingKey>, DecodeError> {
    let key = |bytes: Bytes| {
        let key = BindingKey::from_bytes(&bytes);
        key.ok_or_else(|| invalid::<T>(field, "is not 16 bytes long"))
    };
    bytes.map(key).transpose()
}

impl Wire for Search {
    const WHAT: &'static str = "search";
    type Message = wire::SearchRequest;

    fn to_wire(&self) -> wire::SearchRequest {
        let Filter {
            tenant,
            model,
            conversation,
            worker,
            dp_rank,
            confirmed,
        } = &self.filter;
        wire::SearchRequest {
            after: self.after.map(place),
            limit: self.limit as u64,
            tenant: tenant.as_ref().map(ToString::to_string),
            model: model.as_ref().map(ToString::to_string),
            conversation: conversation.clone(),
            worker: worker.as_ref().map(ToString::to_string),
            dp_rank: dp_rank.map(DpRank::get),
            confirmed: *confirmed,
        }
    }

    fn from_wire(message: wire::SearchRequest) -> Result<Self, DecodeError> {
        let tenant = message.tenant.map(|it| it.parse()).transpose();
        let model = message.model.map(|it| it.parse()).transpose();
        let worker = message.worker.map(|it| it.parse()).transpose();
        let filter = Filter {
            tenant: tenant.map_err(|why| invalid::<Self>("tenant", why))?,
            model: model.map_err(|why| invalid::<Self>("model", why))?,
            conversation: message.conversation,
            worker: worker.map_err(|why| invalid::<Self>("worker", why))?,
            dp_rank: message.dp_rank.map(DpRank::new),
            confirmed: message.confirmed,
        };
        Ok(Self {
            after: read_place::<Self>("after", message.after)?,
            limit: usize::try_from(message.limit).unwrap_or(usize::MAX),
            filter,
        })
    }
}

impl Wire for Page {
    const WHAT: &'static str = "page of bindings";
    type Message = wire::SearchPage;

    fn to_wire(&self) -> wire::SearchPage {
        wire::SearchPage {
            bound: self.bindings.iter().map(Wire::to_wire).collect(),
            next: self.next.map(place),
        }
    }

    fn from_wire(message: wire::SearchPage) -> Result<Self, DecodeError> {
        let bindings = message.bound.into_iter().map(Bound::from_wire);
        Ok(Self {
            bindings: bindings.collect::<Result<_, _>>()?,
            next: read_place::<Self>("next", message.next)?,
        })
    }
}

impl Wire for Reassign {
    const WHAT: &'static str = "reassign";
    type Message = wire::ReassignRequest;

    fn to_wire(&self) -> wire::ReassignRequest {
        wire::ReassignRequest {
            key: Some(self.key.to_wire()),
            to: Some(self.to.to_wire()),
            actor: self.actor.to_string(),
        }
    }

    fn from_wire(message: wire::ReassignRequest) -> Result<Self, DecodeError> {
        Ok(Self {
            key: key::<Self>(message.key)?,
            to: target::<Self>("to", message.to)?,
            actor: actor::<Self>(&message.actor)?,
        })
    }
}

impl Wire for Unbind {
    const WHAT: &'static str = "unbind";
    type Message = wire::UnbindRequest;

    fn to_wire(&self) -> wire::UnbindRequest {
        wire::UnbindRequest {
            key: Some(self.key.to_wire()),
            actor: self.actor.to_string(),
        }
    }

    fn from_wire(message: wire::UnbindRequest) -> Result<Self, DecodeError> {
        Ok(Self {
            key: key::<Self>(message.key)?,
            actor: actor::<Self>(&message.actor)?,
        })
    }
}
