//! Captured streams of real engines.
