//! Where a request should go: a pure function of the request, a snapshot of the fleet, a policy and a seed,
//! and the book of prefill work that has just been sent.
//!
//! It knows neither conversations nor bindings: those are decided above, in `routing`.

mod choose;
mod cost;
mod draw;
mod policy;
mod reservations;
mod snapshot;

pub use choose::{Choice, NoCandidate, Place, Reason, choose};
pub use cost::{Scored, Terms};
pub use policy::{Policy, UnknownPolicy};
pub use reservations::{Refused, Reservation, Reservations, landmarks};
pub use snapshot::{Barred, Candidate, Held, Hint, Request, Snapshot};
