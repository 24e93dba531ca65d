//! Admission: which request waits in its router while every target is past its limit, and which goes next.
//!
//! Pure. [`Limit`] says when a target is past its limit, [`Room`] what those of a model may still be given
//! ([`crate::Router::room`]), and [`Queue`] who waits for it. There is one queue for each model: what waits for one holds
//! up no other.
//!
//! **Order.** Each priority that anybody waits with is in a class: it begins in its own, and is one higher for every
//! thirtieth part of the longest wait that its oldest request has waited, up to the highest. The highest class goes
//! first; of two priorities in it, the one whose oldest request is older. So nobody is overtaken for ever: the oldest of
//! the lowest priority is level with the highest after two thirds of the longest wait. Within a priority tenants take turns by the tokens that were computed for them, divided by
//! their weights (start-time fair queueing): of two that go on waiting neither gets ahead of its share by more than one
//! request of each. Within a tenant the oldest goes first.
//!
//! **Bounds.** So many requests may wait, each for so long. Where there is no place left the newest of whoever has most
//! waiting gives way, lowest priority first: a tenant that floods the queue is refused, not the others. Who would wait
//! too long by the rate at which the queue drains is refused at once.

mod drain;
mod priority;
mod queue;
mod room;
#[cfg(test)]
mod tests;
mod turns;

pub use priority::Priority;
pub use queue::{Asking, Bounds, Cause, Entered, Queue, Refusal, Standing, Ticket};
pub use room::{Limit, Room};
