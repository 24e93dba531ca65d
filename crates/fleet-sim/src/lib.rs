//! fleet-sim
