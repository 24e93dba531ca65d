//! What to believe of one rank's event stream: sequence, gap, restart and replay rules as a state machine.
//!
//! It sees sequence numbers, engine timestamps and opaque payloads, never tokens, sockets or a clock. Every
//! input returns the [`Action`]s its driver must carry out, in order.

mod action;
mod feed;
mod hold;
mod settle;

pub use action::{Action, DropCause, Message, Position, RestartCause};
pub use feed::{RankFeed, ReplayOffer, Rules};
