//! The adapter against engines that say of themselves whatever a test wants.

mod fleet;
mod probing;
mod stub;
