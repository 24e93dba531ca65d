//! Bytes as a history of events, of which the index must say after every step what the naive model says.
//!
//! `fuzz/run` builds and runs it; `cargo +nightly fuzz run histories` does so where cargo-fuzz is installed.

#![no_main]
#![expect(clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

#[path = "../tests/model/bytes.rs"]
mod bytes;
#[path = "../tests/model/history.rs"]
mod history;
#[path = "../tests/model/naive.rs"]
mod naive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| history::check(&bytes::Bytes(input).history()));
