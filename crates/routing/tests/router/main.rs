//! One router's mind, seen from outside.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod binding;
mod carriers;
mod drains;
mod excursion;
mod fleet;
mod lead;
mod lifecycle;
mod owner;
mod ranks;
mod replay;
mod replicas;
mod rival;
mod room;
mod spread;
mod tallies;
mod unknown;
mod untrusted;
mod world;
