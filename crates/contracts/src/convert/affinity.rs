//! `affinity.proto`.

use affinity::{Binding, BindingState, ConversationKey, Evidence, MoveReason, Owner};
use domain::{InstanceId, Target, Timestamp, Tokens};

use super::{Wire, invalid, read_enum, required, wire, wire_enum};
use crate::DecodeError;

wire_enum!(Owner, Owner, { Router => Router, Engine => Engine });
wire_enum!(Evidence, Evidence, {
    None => None,
    Asked => Asked,
    Answer => Answer,
    Event => Event,
});
wire_enum!(MoveReason, MoveReason, {
    Fenced => Fenced,
    Gone => Gone,
    Drained => Drained,
    PrefixLost => PrefixLost,
    Operator => Operator,
    Failed => Failed,
    Observed => Observed,
    Cheaper => Cheaper,
});

impl Wire for Binding {
    const WHAT: &'static str = "binding";
    type Message = wire::Binding;

    fn to_wire(&self) -> wire::Binding {
        let provisional_until = match self.state {
            BindingState::Provisional { lease_until } => Some(lease_until.as_micros()),
            BindingState::Confirmed => None,
        };
        let moved = match self.moved {
            Some(reason) => wire::MoveReason::from(reason),
            None => wire::MoveReason::Unspecified,
        };
        wire::Binding {
            tenant: self.key.tenant.to_string(),
            model: self.key.model.to_string(),
            conversation: self.key.conversation.to_string(),
            target: Some(self.target.to_wire()),
            owner: wire::Owner::from(self.owner).into(),
            provisional_until,
            evidence: wire::Evidence::from(self.evidence).into(),
            moved: moved.into(),
            actor: self.actor.to_string(),
            held_tokens: self.held.get(),
            turns: self.turns,
            last_end: self.last_end.as_micros(),
            since: self.since.as_micros(),
        }
    }

    fn from_wire(message: wire::Binding) -> Result<Self, DecodeError> {
        let tenant = message.tenant.parse();
        let model = message.model.parse();
        let conversation = message.conversation.parse();
        let state = match message.provisional_until {
            Some(micros) => BindingState::Provisional {
                lease_until: Timestamp::from_micros(micros),
            },
            None => BindingState::Confirmed,
        };
        let moved = if message.moved == i32::from(wire::MoveReason::Unspecified) {
            None
        } else {
            Some(read_enum::<Self, wire::MoveReason, _>(
                "moved",
                message.moved,
            )?)
        };
        let actor = InstanceId::new(&message.actor);
        // What was written before there was the field has stood no later than this.
        let since = match message.since {
            0 => message.last_end,
            since => since,
        };
        Ok(Self {
            key: ConversationKey {
                tenant: tenant.map_err(|why| invalid::<Self>("tenant", why))?,
                model: model.map_err(|why| invalid::<Self>("model", why))?,
                conversation: conversation.map_err(|why| invalid::<Self>("conversation", why))?,
            },
            target: Target::from_wire(required::<Self, _>("target", message.target)?)?,
            owner: read_enum::<Self, wire::Owner, _>("owner", message.owner)?,
            state,
            evidence: read_enum::<Self, wire::Evidence, _>("evidence", message.evidence)?,
            moved,
            since: Timestamp::from_micros(since),
            actor: actor.map_err(|why| invalid::<Self>("actor", why))?,
            held: Tokens::new(message.held_tokens),
            turns: message.turns,
            last_end: Timestamp::from_micros(message.last_end),
        })
    }
}
