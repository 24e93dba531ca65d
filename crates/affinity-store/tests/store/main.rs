//! What can be relied on when the store is asked for bindings.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where its rig does not work"
)]

mod durable;
mod operator;
mod rig;
mod routers;
