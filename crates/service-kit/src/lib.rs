//! How a process lives: its clock, health, settings, telemetry, tasks, listeners, bus, place in the fleet and end.

mod admin;
mod bus_metrics;
mod clock;
mod error_chain;
mod fleet;
mod grpc;
mod health;
mod kept_secret;
mod listener;
mod open_bus;
mod presence;
mod process;
mod same_secret;
pub mod settings;
mod sweep;
mod telemetry;

pub use admin::{ListenError, admin_routes, listen, protect};
pub use clock::Clock;
pub use error_chain::error_chain;
pub use fleet::{Fleet, in_turn};
pub use grpc::{GrpcListener, GrpcSettings, GrpcTls, InvalidGrpc};
pub use health::{Component, Health};
pub use kept_secret::{KeptSecretError, kept_secret};
pub use listener::serve;
pub use open_bus::{BusSettings, InvalidBus, NatsTls, OpenBus};
pub use presence::Presence;
pub use process::{Ended, Process};
pub use same_secret::SameSecret;
pub use telemetry::{InvalidFilter, init_logging};
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
