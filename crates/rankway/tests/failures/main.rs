//! Each service, NATS and an engine as a process of its own, killed, frozen and cut off under load: what users may see
//! of it, and that all is as before afterwards.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../command/http_client.rs"]
#[expect(dead_code, reason = "these tests read answers by other means too")]
mod http_client;
mod load;
mod network;
#[path = "../command/process.rs"]
#[expect(dead_code, reason = "these tests start processes of their own")]
mod process;
mod rows;
mod service;
mod world;
