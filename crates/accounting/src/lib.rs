//! What became of a request's cacheable tokens: the waterfall of one request, and totals over many.
//!
//! Pure arithmetic: it decides nothing and measures nothing.

mod gap;
mod totals;
mod waterfall;

pub use gap::Gap;
pub use totals::{Sums, Totals};
pub use waterfall::{
    Carrier, Chosen, Inverted, Levels, Observation, Parts, RankKnowledge, Waterfall,
};
