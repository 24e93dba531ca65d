//! Rankway's prefix index and its peers', measured in one process on the same streams.

pub mod child;
pub mod children;
pub mod clock;
pub mod contest;
pub mod decide;
pub mod event;
pub mod fleet;
pub mod index;
pub mod matrix;
pub mod model;
pub mod random;
pub mod ratios;
pub mod recovery;
pub mod report;
pub mod rounds;
pub mod scratch;
pub mod served;
pub mod settings;
pub mod structures;
pub mod trace;
pub mod traces;
pub mod verify;
