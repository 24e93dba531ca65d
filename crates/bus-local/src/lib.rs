//! bus-local
