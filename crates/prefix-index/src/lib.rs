//! Which target holds which prefix: exact under evictions anywhere, duplicates, tiers and restarts.
//!
//! A block is known by its sequence hash, which names its content and everything before it; a target's
//! claim to a prefix is the run of leading sequence hashes it holds. So a hole in the middle shortens the
//! answer and a re-store restores it, without any tree to repair. Inside, targets are dense slots and the
//! holders of a block are bit sets; a lookup is one table probe and a few word operations a block.
//!
//! The crate is pure: whoever owns a [`PrefixIndex`] decides about locks, time and storage.

mod carried;
mod history;
mod holders;
mod index;
mod namespaces;
mod overlap;
mod rank;
mod snapshot;

pub use carried::Carried;
pub use index::{Applied, Claims, Fenced, PrefixIndex, RankSummary, Size};
pub use overlap::Overlap;
pub use snapshot::{Copies, HeldBlock, RankSnapshot, RestoreError};
