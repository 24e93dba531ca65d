//! The command as people run it: real processes, real sockets, real files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alone;
mod config_check;
mod content;
mod conversation;
mod crash;
mod decisions;
mod demo;
mod endpoints;
mod engines;
mod fleet;
mod help;
mod http_client;
mod mistake;
mod nats_users;
mod operate;
mod owners;
mod process;
mod query;
mod replay;
mod settled;
mod sim;
mod tenants;
mod truth;
mod up;
mod verify;
mod wrong_settings;
mod wrong_use;
