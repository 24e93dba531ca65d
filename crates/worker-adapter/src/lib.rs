//! worker-adapter
