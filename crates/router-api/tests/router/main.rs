//! The router over real sockets: a client in front, the worker adapter and an engine behind it, the affinity
//! store and the bus beside it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod account;
mod admission;
mod asked;
mod client;
mod conversations;
mod dispatch;
mod edges;
mod engine;
mod explained;
mod index;
mod isolation;
mod operator;
mod outcome;
mod owner;
mod passing;
mod priorities;
mod ranks;
mod records;
mod replicas;
mod shadow;
mod sources;
mod steering;
mod tenants;
mod world;

use std::time::Duration;

/// Waits for something that comes soon, or not at all.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(15), what)
        .await
        .expect("it comes soon or not at all")
}
