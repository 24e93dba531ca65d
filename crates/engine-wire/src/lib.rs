//! engine-wire
