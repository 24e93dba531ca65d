//! The fake engine's promises, over real sockets.

mod client;
mod events;
mod surface;
