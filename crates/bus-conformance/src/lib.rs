//! bus-conformance
