//! Blocks of tokens and their hashes, equal to Dynamo's.
//!
//! Source: `lib/kv-router/src/protocols.rs`, `lib/kv-hashing/src/salt.rs` of ai-dynamo/dynamo 1.6.1; the
//! golden vectors in the tests were computed with an independent xxHash.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::ModelName;

/// The seed of an unsalted block hash, and of every sequence hash.
const BASE_SEED: u64 = 1337;
/// Blocks are hashed through a buffer on the stack up to this size; larger ones take the heap.
const STACK_BLOCK_TOKENS: usize = 1024;

/// Tokens per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockSize(NonZeroU32);

/// A block size of zero, or beyond [`BlockSize::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not 1 to {} tokens", BlockSize::MAX)]
pub struct InvalidBlockSize;

impl BlockSize {
    /// The most tokens of a block: engines have 1 to a few hundred, and whoever hashes blocks holds one of them, here
    /// 256 KiB.
    pub const MAX: u32 = 65_536;

    /// Refuses zero, and more than [`BlockSize::MAX`].
    pub fn new(tokens: u32) -> Result<Self, InvalidBlockSize> {
        let within = NonZeroU32::new(tokens).filter(|it| it.get() <= Self::MAX);
        within.map(Self).ok_or(InvalidBlockSize)
    }

    /// Tokens per block.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// Tokens in `blocks` blocks.
    pub fn tokens(self, blocks: u32) -> crate::Tokens {
        crate::Tokens::new(u64::from(blocks) * u64::from(self.get()))
    }

    /// Full blocks strictly below `isl` tokens: what an engine can at most take from its cache, because
    /// it always computes at least one token.
    pub fn cacheable_blocks(self, isl: crate::Tokens) -> u32 {
        let blocks = isl.get().saturating_sub(1) / u64::from(self.get());
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }
}

/// The content of one block: xxh3-64 of its tokens as little-endian u32 under a [`HashSeed`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(u64);

/// A block and everything before it: `seq[0] = block[0]`, `seq[i] = xxh3(seq[i-1] || block[i], 1337)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceHash(u64);

macro_rules! hash_newtype {
    ($name:ident) => {
        impl $name {
            /// Wraps a value read from the wire.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// Its value.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
    };
}

hash_newtype!(BlockHash);
hash_newtype!(SequenceHash);

impl SequenceHash {
    /// The hash of a sequence's first block.
    pub const fn root(first: BlockHash) -> Self {
        Self(first.0)
    }

    /// The hash of this sequence and one more block.
    #[inline]
    #[must_use]
    pub fn extend(self, block: BlockHash) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&block.0.to_le_bytes());
        Self(xxh3_64_with_seed(&bytes, BASE_SEED))
    }

    /// Its term in the digest of a set of blocks, which is the wrapping sum of the terms: xxh3-64, seed 0,
    /// of its little-endian bytes.
    pub fn digest_term(self) -> u64 {
        xxh3_64(&self.0.to_le_bytes())
    }
}

/// What sets one namespace's block hashes apart: `1337 + xxh3(lora, 0) + xxh3(salt, 1)`, wrapping, each
/// term only where it is non-empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashSeed(u64);

impl HashSeed {
    /// The seed of blocks computed under `lora` and `salt`; an empty text counts as none.
    pub fn of(lora: Option<&str>, salt: Option<&str>) -> Self {
        let mut seed = BASE_SEED;
        if let Some(lora) = lora.filter(|it| !it.is_empty()) {
            seed = seed.wrapping_add(xxh3_64(lora.as_bytes()));
        }
        if let Some(salt) = salt.filter(|it| !it.is_empty()) {
            seed = seed.wrapping_add(xxh3_64_with_seed(salt.as_bytes(), 1));
        }
        Self(seed)
    }
}

/// Hashes the full blocks of `tokens`; a shorter rest is left out.
pub fn block_hashes(tokens: &[u32], block_size: BlockSize, seed: HashSeed) -> Vec<BlockHash> {
    match block_size.get() {
        16 => of_fixed::<16>(tokens, seed).collect(),
        32 => of_fixed::<32>(tokens, seed).collect(),
        64 => of_fixed::<64>(tokens, seed).collect(),
        _ => of_any(tokens, block_size, seed),
    }
}

/// Chains block hashes into sequence hashes, one for each prefix.
pub fn sequence_hashes(blocks: &[BlockHash]) -> Vec<SequenceHash> {
    chain(blocks.iter().copied())
}

/// The sequence hashes of the full blocks of `tokens`: [`block_hashes`] chained by [`sequence_hashes`], in less time.
/// The chain waits for each hash before it, and meanwhile the next blocks are hashed.
pub fn prefix_hashes(tokens: &[u32], block_size: BlockSize, seed: HashSeed) -> Vec<SequenceHash> {
    match block_size.get() {
        16 => chain(of_fixed::<16>(tokens, seed)),
        32 => chain(of_fixed::<32>(tokens, seed)),
        64 => chain(of_fixed::<64>(tokens, seed)),
        _ => chain(of_any(tokens, block_size, seed).into_iter()),
    }
}

/// The blocks of a size that the compiler knows: most engines' sizes, for which it leaves out copies and cases.
fn of_fixed<const SIZE: usize>(
    tokens: &[u32],
    seed: HashSeed,
) -> impl ExactSizeIterator<Item = BlockHash> {
    let (blocks, _) = tokens.as_chunks::<SIZE>();
    blocks.iter().map(move |block| {
        let bytes = block.map(u32::to_le_bytes);
        BlockHash(xxh3_64_with_seed(bytes.as_flattened(), seed.0))
    })
}

fn of_any(tokens: &[u32], block_size: BlockSize, seed: HashSeed) -> Vec<BlockHash> {
    let size = block_size.get() as usize;
    if tokens.len() < size {
        return Vec::new();
    }
    let mut stack = [0_u8; STACK_BLOCK_TOKENS * 4];
    let mut heap = Vec::new();
    let buffer = if size <= STACK_BLOCK_TOKENS {
        &mut stack[..size * 4]
    } else {
        heap.resize(size * 4, 0);
        &mut heap[..]
    };
    let hash = |block: &[u32]| {
        for (bytes, token) in buffer.chunks_exact_mut(4).zip(block) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        BlockHash(xxh3_64_with_seed(buffer, seed.0))
    };
    tokens.chunks_exact(size).map(hash).collect()
}

fn chain(mut blocks: impl ExactSizeIterator<Item = BlockHash>) -> Vec<SequenceHash> {
    let Some(first) = blocks.next() else {
        return Vec::new();
    };
    let mut last = SequenceHash::root(first);
    let mut sequences = vec![last; blocks.len() + 1];
    for (sequence, block) in sequences[1..].iter_mut().zip(blocks) {
        last = last.extend(block);
        *sequence = last;
    }
    sequences
}

/// The engine's own id of a block: opaque, and meaningful only at the target that announced it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EngineHash {
    /// An integer, as its 64-bit pattern.
    Int(u64),
    /// A digest or a text, as bytes.
    Bytes(Arc<[u8]>),
}

impl fmt::Debug for EngineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => write!(f, "{value:016x}"),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// Where a block lies, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// GPU memory.
    Gpu,
    /// Host memory.
    Host,
    /// Local disk.
    Disk,
}

/// Selects an index: blocks of different namespaces are never compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The model.
    pub model: ModelName,
    /// The LoRA adapter's name, where one is used.
    pub lora: Option<Arc<str>>,
    /// The cache salt, where one is used.
    pub salt: Option<Arc<str>>,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl Namespace {
    /// The seed of its block hashes.
    pub fn seed(&self) -> HashSeed {
        HashSeed::of(self.lora.as_deref(), self.salt.as_deref())
    }
}
