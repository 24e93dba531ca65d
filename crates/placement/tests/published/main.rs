//! What published policies decide, worked out by hand.
//!
//! A table has a line for each target: its name, what is known of it, and after the bar what the policy makes of it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blind;
mod dynamo;
mod hostile;
mod llmd;
mod products;
mod research;
mod sglang;
mod sticky;
mod table;
mod tensorrt;
