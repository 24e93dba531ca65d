//! Conversations and the targets they are bound to: which id a request carries, and what may happen to a
//! binding. Pure: every transition takes the time and returns what to write.

mod binding;

pub use binding::{Binding, BindingState, ConversationKey, Evidence, MoveReason, Owner};
