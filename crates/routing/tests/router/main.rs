//! One router's mind, seen from outside.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod binding;
mod drains;
mod fleet;
mod lifecycle;
mod ranks;
mod replay;
mod spread;
mod world;
