//! How a process lives: its clock, health, settings, telemetry, tasks and end.

mod clock;
mod health;

pub use clock::Clock;
pub use health::{Component, Health};
pub use tokio_util::sync::CancellationToken;

/// What every service is given besides its configuration and its peers.
#[derive(Clone)]
pub struct Context {
    /// Where its metrics are registered.
    pub registry: prometheus::Registry,
    /// Where its readiness is reported.
    pub health: Health,
    /// What time it is.
    pub clock: Clock,
}
