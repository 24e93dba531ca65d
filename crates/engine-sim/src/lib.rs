//! engine-sim
