//! The bus over real NATS servers: what every bus promises, and what this one does when a server stops, stands still,
//! refuses or is refused.
//!
//! The modules say `cfg(test)` so that clippy knows their helpers for parts of tests.

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod logins;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod server;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod writers;
