//! affinity-store
