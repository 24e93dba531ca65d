//! Turns the KV events of every engine in `fleet` into the log. Token ids end here: what leaves is hashes.
//!
//! Each rank with an endpoint has a subscriber, which only reads its socket into a bounded queue, or a part in the drain
//! of its server, which asks for the events of all ranks; and a task that decides with `event-feed`, translates, appends, and keeps how far it came.

mod claims;
mod config;
mod drain;
mod epoch;
mod findings;
mod metrics;
mod outbox;
mod pages;
mod parts;
mod positions;
mod quiet;
mod rank;
mod recall;
mod replay;
mod resync;
mod roster;
mod service;
mod shelf;
mod subscriber;
mod table;
mod translate;
mod warnings;
mod worker;

pub use config::Config;
pub use service::{EventIngest, StartError};
