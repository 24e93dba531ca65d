//! Services that find each other in the fleet, over the in-memory bus and real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bindings;
mod engines;
mod index;
mod presence;
mod secrets;
mod world;
