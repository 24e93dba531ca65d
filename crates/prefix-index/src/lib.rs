//! prefix-index
