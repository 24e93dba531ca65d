//! Where a request should go: a pure function of the request, a snapshot of the fleet, a policy and a seed,
//! the book of prefill work that has just been sent, and what bound conversations will go on to ask.
//!
//! It knows neither conversations nor bindings: those are decided above, in `routing`.

mod choose;
mod draw;
mod kv;
mod obligations;
mod policies;
mod policy;
mod reservations;
mod snapshot;

pub use choose::{Choice, NoCandidate, Place, Reason, choose};
pub use kv::{Scored, Terms, Weights};
pub use obligations::{BoundTurn, Obligation, Obligations};
pub use policies::{
    Aibrix, BoundedHash, Dynamo, LlmdAffinity, LlmdBlend, LoadAware, MooncakeConductor, PrebleE2,
    SglCacheAware, SglNearMin, Smetric, TrtConvAdp, TrtKvAdp, VerlMargin,
};
pub use policy::{InvalidPolicy, Keeps, Policies, Policy};
pub use reservations::{InFlight, Refused, Reservation, Reservations, Reserved, landmarks};
pub use snapshot::{Barred, Candidate, Gauge, Held, Hint, Request, Snapshot, Stuck, Tally};
