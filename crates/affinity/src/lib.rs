//! Conversations and the targets they are bound to: which id a request carries, and what may happen to a
//! binding. Pure: every transition takes the time and returns what to write.

mod binding;
mod conversation;
mod key;
mod leases;
mod machine;
mod plan;

pub use binding::{Binding, BindingState, ConversationKey, Evidence, MoveReason, Owner, TurnEnd};
pub use conversation::{
    BodyIds, Conversation, EXPLICIT_HEADER, Found, InvalidConversation, Source, SourceKind,
    find_conversation, parent_hint,
};
pub use key::{BindingKey, BindingSecret, InvalidKey, SecretTooShort};
pub use machine::{Event, NotBound, Outcome, Standing, Terms, Transition, Write};
pub use plan::{Liveness, Mode, Overlap, Plan, plan_turn};
