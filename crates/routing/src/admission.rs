//! Admission: which request waits in its router while every target is past its limit, and which goes next.
//!
//! Pure. [`Limit`] says when a target is past its limit, [`Room`] what those of a model may still be given
//! ([`crate::Router::room`]), and [`Queue`] who waits for it. There is one queue for each model: what waits for one holds
//! up no other.
//!
//! **Order.** A request belongs to the class of its priority, and rises by one class for every thirtieth part of the
//! longest wait that it has waited: so it is overtaken by those of a higher priority only if they come soon after it,
//! and the lowest is in the highest class after two thirds of the longest wait. The highest class that anybody waits in
//! is served. Within it tenants take turns by the tokens that were computed for them, divided by
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
