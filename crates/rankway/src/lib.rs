//! What the command `rankway` and the scenarios both run: the services in one process, and live progress.

pub mod compose;
pub mod progress;
pub mod suite;
