//! One suite for both origins of each call: in process, and by address over a real socket. The services behind are
//! stubs that say what a test wants and note what they are asked.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod affinity;
mod dispatch;
mod dispatch_ends;
mod feed;
mod index;
mod lost;
mod malformed;
mod origin;
mod samples;
