//! One router replica's mind: the fleet as it sees it, what has been sent and not yet answered, and what it
//! has learnt, of speeds, of ranks that are not honoured (`truth`) and of caches that nothing announces
//! (`presumed`). Pure: every call takes the time, and every choice a seed. `admission` is what waits before it.
//!
//! It composes `placement` (which target is cheapest), `affinity` (what a binding demands) and `accounting`
//! (what came of it). The router service and the simulator run this same code.

pub mod admission;
mod binding;
mod carriers;
mod config;
mod decision;
mod drains;
mod fleet;
mod heard;
mod learnt;
mod open;
mod owner;
mod presumed;
mod request;
mod rival;
mod router;
mod snapshot;
mod tally;
mod truth;

pub use binding::conversation_hash;
pub use config::Config;
pub use decision::{BindingAction, Decision, Degraded, Overlap, Reason, replay};
pub use drains::Drained;
pub use open::{Outcome, Status};
pub use owner::{RankSourceError, RankSources};
pub use request::{Lead, NoTarget, OverlapView, Pin, Request};
pub use rival::{Made, Rival, Rivalry};
pub use router::{Counters, Router};
pub use truth::{Asked, Fault, Finding, RankTruth, Seen};
