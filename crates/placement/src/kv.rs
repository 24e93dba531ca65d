//! Ours: the rank where the request costs the fleet the fewest seconds.

mod choose;
mod cost;
mod weights;

pub(crate) use choose::choose;
pub(crate) use cost::scores;
pub use cost::{Scored, Terms};
pub use weights::Weights;
