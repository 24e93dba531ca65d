//! What llama.cpp's server says of itself. Its slots are its ranks: each holds the prefix of one conversation,
//! the last it served. It announces no KV events.
//!
//! Its answers do not say which slot ran.

mod props;
mod slots;

pub use props::{Props, PropsError, is_props, parse_props};
pub use slots::{parse_deferred, parse_slots};
