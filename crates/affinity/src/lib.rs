//! Conversations and the targets they are bound to: which id a request carries, and what may happen to a
//! binding. Pure: every transition takes the time and returns what to write.

mod binding;
mod conversation;
mod correlation;
mod key;
mod leases;
mod lineage;
mod machine;
mod mode;
mod plan;
mod recent;

pub use binding::{
    Binding, BindingState, ConversationKey, Evidence, MoveReason, Owner, TurnEnd, UnknownOwner,
};
pub use conversation::{
    BodyIds, Claim, Conversation, EXPLICIT_HEADER, Found, InvalidConversation, Source, SourceKind,
    UnknownSource, after_response, find_conversation, parent_hint,
};
pub use correlation::Correlations;
pub use key::{BindingKey, BindingSecret, InvalidKey, SecretTooShort};
pub use lineage::{Descent, Kin, Lead, Lineage, Origin};
pub use machine::{Event, NotBound, Outcome, Standing, Terms, Transition, Write};
pub use mode::{Mode, Modes, UnknownMode};
pub use plan::{Liveness, Overlap, Patience, Plan, Prices, plan_turn};
