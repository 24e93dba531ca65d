//! A binding: which target serves a conversation, since when, and why.

use std::str::FromStr;

use domain::{ConversationId, Epoch, InstanceId, ModelName, Target, TenantId, Timestamp, Tokens};

/// What a binding is kept under: the same id of two tenants or models names two conversations.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConversationKey {
    /// Whose conversation.
    pub tenant: TenantId,
    /// With which model.
    pub model: ModelName,
    /// Its id.
    pub conversation: ConversationId,
}

/// Who decides the rank of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The router: the rank is sent strict on every turn.
    Router,
    /// The engine: the rank is learnt.
    Engine,
}

impl Owner {
    /// Its name in settings and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Engine => "engine",
        }
    }
}

/// A word for no owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no rank source: choose engine or router (dynamo means router)")]
pub struct UnknownOwner {
    text: String,
}

impl FromStr for Owner {
    type Err = UnknownOwner;

    fn from_str(text: &str) -> Result<Self, UnknownOwner> {
        match text {
            "engine" => Ok(Self::Engine),
            "router" | "dynamo" => Ok(Self::Router),
            _ => Err(UnknownOwner {
                text: text.to_owned(),
            }),
        }
    }
}

/// How far a binding has come. None and expired are the absence of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingState {
    /// Chosen, and some request of the conversation is on its way; nothing has been served yet.
    Provisional {
        /// Until when the holder's silence is taken for life.
        lease_until: Timestamp,
    },
    /// A token has been served there.
    Confirmed,
}

/// What shows that the bound target is the one that ran, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Evidence {
    /// Nothing yet.
    None,
    /// A strict rank was asked for and a first byte came.
    Asked,
    /// An event of this turn's blocks came from the rank.
    Event,
    /// The engine's answer names the rank.
    Answer,
}

impl Evidence {
    /// Whether it is the engine's own word; otherwise a binding does not leave its target for it.
    pub fn is_of_the_engine(self) -> bool {
        match self {
            Self::Answer | Self::Event => true,
            Self::None | Self::Asked => false,
        }
    }
}

/// Why a binding left its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveReason {
    /// The worker's incarnation ended.
    Fenced,
    /// The target is not there any more.
    Gone,
    /// An operator drains it.
    Drained,
    /// The target holds less than half of what the last turn left there.
    PrefixLost,
    /// An operator said so.
    Operator,
    /// The request failed there before its first byte and was retried elsewhere.
    Failed,
    /// The engine served a turn on another rank than the bound one: the binding followed it, once.
    Observed,
    /// Another target is cheaper by more than what the bound one saves; only of soft bindings.
    Cheaper,
}

/// One conversation's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Which conversation.
    pub key: ConversationKey,
    /// Where it is served. Of a binding that the engine owns, the rank is not known before there is evidence:
    /// see [`Binding::knows_rank`].
    pub target: Target,
    /// Who decides that.
    pub owner: Owner,
    /// How far it has come.
    pub state: BindingState,
    /// What shows it.
    pub evidence: Evidence,
    /// Why it is at this target: none for the first placement.
    pub moved: Option<MoveReason>,
    /// Since when it is at this target: the first placement, or the last move.
    pub since: Timestamp,
    /// The router or operator that wrote it last.
    pub actor: InstanceId,
    /// Full-block tokens the last finished turn left at the target.
    pub held: Tokens,
    /// Turns finished.
    pub turns: u32,
    /// When the last stream ended, or the binding was made.
    pub last_end: Timestamp,
}

impl MoveReason {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Fenced,
        Self::Gone,
        Self::Drained,
        Self::PrefixLost,
        Self::Operator,
        Self::Failed,
        Self::Observed,
        Self::Cheaper,
    ];
}

impl Binding {
    /// Whether the rank of its target means anything: what an engine has chosen, and nothing has shown, does not.
    pub fn knows_rank(&self) -> bool {
        match self.owner {
            Owner::Router => true,
            Owner::Engine => self.evidence.is_of_the_engine(),
        }
    }

    /// Whether its target belongs to an earlier incarnation of its worker than `current`: nothing it stands
    /// for is there any more, and the caller rebinds.
    pub fn is_fenced(&self, current: Epoch) -> bool {
        self.target.epoch < current
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// At least one byte was served.
    Served {
        /// Full-block tokens it left at the target.
        held: Tokens,
    },
    /// It failed, or the client left, before the first byte.
    Unserved,
}
