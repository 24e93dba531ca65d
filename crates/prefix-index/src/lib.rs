//! Which target holds which prefix: exact under evictions anywhere, duplicates, tiers and restarts.
//!
//! A block is known by its sequence hash, which names its content and everything before it; a target's
//! claim to a prefix is the run of leading sequence hashes it holds. Blocks lie in *runs*, consecutive blocks of
//! one chain, which are never split: a chain that parts from one hangs on it, and who holds how much of it, with
//! or without holes, is a matter of its holders. So a lookup compares a few runs and not each block, and a
//! chain that a second target stores costs a comparison. What is evicted stays where it was for a while, held
//! by nobody, so that an eviction is a change of one holder and what comes back is joined. What engines call
//! the blocks takes memory only where it is not their sequence hashes.
//!
//! The owner of a [`PrefixIndex`] writes; any number of [`Reader`]s look up at the same time, in the compact
//! form of an [`Answer`] or with the targets' names as an [`Overlap`]:
//!
//! ```
//! use domain::{
//!     BlockHash, BlockSize, DpRank, EngineHash, Epoch, KvOp, ModelName, Namespace, StoredBlock,
//!     StoredBlocks, Target, Tier, WorkerId, sequence_hashes,
//! };
//! use prefix_index::{Answer, PrefixIndex, Sparse};
//!
//! let namespace = Namespace {
//!     model: ModelName::new("m")?,
//!     lora: None,
//!     salt: None,
//!     block_size: BlockSize::new(16)?,
//! };
//! let target = Target {
//!     worker: WorkerId::new("w1")?,
//!     epoch: Epoch::FIRST,
//!     dp_rank: DpRank::new(0),
//! };
//! let blocks: Vec<BlockHash> = (0..40).map(BlockHash::new).collect();
//! let chain = sequence_hashes(&blocks);
//!
//! // The writer.
//! let mut index = PrefixIndex::new(1000);
//! let block = |place: usize| StoredBlock {
//!     engine_hash: EngineHash::Int(chain[place].get()),
//!     block_hash: blocks[place],
//! };
//! let stored = KvOp::Stored(StoredBlocks {
//!     group: 0,
//!     parent: None,
//!     blocks: (0..36).map(block).collect(),
//!     tier: Tier::Gpu,
//!     namespace: namespace.clone(),
//!     session: None,
//! });
//! index.apply(&target, &stored)?;
//!
//! // A reader, on any thread, with the targets' names.
//! let reader = index.reader();
//! let overlap = reader.overlap(&namespace, &chain);
//! assert_eq!(overlap.groups[0].targets, [target.clone()]);
//! assert_eq!(overlap.groups[0].depths.gpu, 36);
//!
//! // The hot path: the namespace's key and the answer's memory are kept.
//! let key = reader.key(&namespace);
//! let mut answer = Answer::new();
//! reader.lookup(key, &chain, &mut answer);
//! assert_eq!(answer.best(), 36);
//! reader.lookup(key, &blocks, &mut answer);
//! let (depths, slots) = answer.groups().next().expect("one target holds some of it");
//! assert_eq!(depths.gpu, 36);
//! assert_eq!(reader.target_of(&answer, slots[0].trailing_zeros()), Some(target));
//!
//! // Every 16th hash and the last.
//! let sparse = [chain[15], chain[31], chain[39]];
//! reader.lookup(key, Sparse::new(16, 40, &sparse)?, &mut answer);
//! assert_eq!(answer.best(), 32);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate is pure: whoever owns a [`PrefixIndex`] decides about time and storage.

mod answer;
mod arena;
mod board;
mod carried;
mod chain;
mod crowded;
mod departed;
mod digest;
mod editing;
mod forest;
mod ghosts;
mod history;
mod holders;
mod index;
mod list;
mod lookup;
#[cfg(all(loom, test))]
mod loom;
mod memory;
mod namespaces;
mod naming;
mod odd;
mod overlap;
mod processor;
mod rank;
mod reader;
mod request;
mod run;
#[cfg(test)]
mod samples;
mod slower;
mod snapshot;
mod sync;
mod table;
mod taking;
mod window;
mod work;

pub use answer::Answer;
pub use carried::Carried;
pub use index::{Applied, Claims, Fenced, PrefixIndex, RankSummary, Size};
pub use memory::Memory;
pub use overlap::Overlap;
pub use reader::{NamespaceKey, Reader};
pub use request::{InvalidSparse, InvalidWindow, Request, Sparse, Window};
pub use snapshot::{Copies, HeldBlock, RankSnapshot, RestoreError};
