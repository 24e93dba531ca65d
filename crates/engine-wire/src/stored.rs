//! Blocks that were filled, and which of them an index can use.

use std::sync::Arc;

use domain::EngineHash;

use crate::{Lora, Medium, SpecKind};

/// A chain of blocks that a rank now holds, each the child of the one before.
///
/// `kv_cache_report_mode=full` of vLLM announces blocks again that were there already; nothing in the event
/// tells that apart from a second copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The engine's names of the blocks.
    pub block_hashes: Vec<EngineHash>,
    /// The block that the first one extends; none at the root.
    pub parent: Option<EngineHash>,
    /// The tokens of the leading blocks. Where the engine sends pairs of neighbours (SGLang with EAGLE), the
    /// first of each pair: the last token's neighbour, on which the engine's match also depends, is dropped.
    pub token_ids: Vec<u32>,
    /// How many tokens follow `token_ids` in blocks whose content token ids do not describe, such as the
    /// placeholders of an image, and in all blocks after those.
    pub opaque_tokens: usize,
    /// Tokens per block as announced: the page size of SGLang, less for a block that is not full yet, 0 for a
    /// placeholder of an offloaded block.
    pub block_size: u32,
    /// Where the blocks lie.
    pub medium: Medium,
    /// The engine's KV cache group; none where it has but one.
    pub group: Option<u32>,
    /// What the group serves, where the engine says.
    pub spec_kind: Option<SpecKind>,
    /// The LoRA adapter, where one is used.
    pub lora: Option<Lora>,
    /// The cache salt. vLLM says it with a sequence's first block only: a store with a parent and without a
    /// salt has its parent's.
    pub salt: Option<Arc<str>>,
    /// The session whose request filled the blocks, where the engine says.
    pub session: Option<Arc<str>>,
}

/// One block of a store under its two names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullBlock<'a> {
    /// The engine's name for it.
    pub engine_hash: &'a EngineHash,
    /// Its tokens, as many as the store's block size.
    pub token_ids: &'a [u32],
}

/// Why no block of a store can be indexed by its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotIndexable {
    /// It names no blocks.
    #[error("the store names no blocks")]
    NoBlocks,
    /// It names blocks and leaves their content out, as for offloaded blocks.
    #[error("the store is a placeholder without tokens")]
    Placeholder,
    /// Blocks left out of the hashes are still in the tokens, so that nobody knows which tokens are whose.
    #[error("the store has {tokens} tokens where its blocks hold {capacity}")]
    MoreTokens {
        /// Tokens announced.
        tokens: usize,
        /// What its blocks hold.
        capacity: usize,
    },
    /// Its last block is not full, or it is wrong.
    #[error("the store has {tokens} tokens where its blocks hold {capacity}")]
    FewerTokens {
        /// Tokens announced.
        tokens: usize,
        /// What its blocks hold.
        capacity: usize,
    },
    /// Its group needs only a part of the prefix.
    #[error("blocks of kind {} do not stand for their prefix", kind.name())]
    PartOfPrefix {
        /// What the group serves.
        kind: SpecKind,
    },
    /// Its group is not the first, and the engine does not say what it serves.
    #[error("the engine does not say what group {group} serves")]
    UnknownGroup {
        /// Which.
        group: u32,
    },
    /// Its LoRA adapter has a number but no name.
    #[error("the adapter {id} has no name")]
    UnnamedLora {
        /// The engine's number for it.
        id: i64,
    },
    /// Already its first block has content that tokens do not describe.
    #[error("the first block has content that its tokens do not describe")]
    Opaque,
}

impl NotIndexable {
    /// A name for metrics, one of a fixed few.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NoBlocks => "no_blocks",
            Self::Placeholder => "placeholder",
            Self::MoreTokens { .. } => "more_tokens",
            Self::FewerTokens { .. } => "fewer_tokens",
            Self::PartOfPrefix { .. } => "part_of_prefix",
            Self::UnknownGroup { .. } => "unknown_group",
            Self::UnnamedLora { .. } => "unnamed_lora",
            Self::Opaque => "opaque",
        }
    }
}

impl Stored {
    /// The leading blocks whose content their tokens say in full, at least one.
    ///
    /// They are fewer than `block_hashes` where a later block is opaque: a chain ends there for whoever knows
    /// blocks by their tokens. Whether `block_size` is the size that is indexed, and whether `medium` is a
    /// tier at all, is for the caller to say.
    pub fn full_blocks(
        &self,
    ) -> Result<impl ExactSizeIterator<Item = FullBlock<'_>> + Clone, NotIndexable> {
        self.check_namespace()?;
        if self.block_hashes.is_empty() {
            return Err(NotIndexable::NoBlocks);
        }
        let tokens = self.token_ids.len().saturating_add(self.opaque_tokens);
        if self.block_size == 0 || tokens == 0 {
            return Err(NotIndexable::Placeholder);
        }
        let block_size = self.block_size as usize;
        let capacity = self.block_hashes.len().saturating_mul(block_size);
        if tokens > capacity {
            return Err(NotIndexable::MoreTokens { tokens, capacity });
        }
        if tokens < capacity {
            return Err(NotIndexable::FewerTokens { tokens, capacity });
        }
        if self.token_ids.len() < block_size {
            return Err(NotIndexable::Opaque);
        }
        let contents = self.token_ids.chunks_exact(block_size);
        Ok(self
            .block_hashes
            .iter()
            .zip(contents)
            .map(|(engine_hash, token_ids)| FullBlock {
                engine_hash,
                token_ids,
            }))
    }

    fn check_namespace(&self) -> Result<(), NotIndexable> {
        match (&self.spec_kind, self.group) {
            (Some(kind), _) if !kind.spans_prefix() => {
                return Err(NotIndexable::PartOfPrefix { kind: kind.clone() });
            }
            (None, Some(group)) if group != 0 => return Err(NotIndexable::UnknownGroup { group }),
            _ => {}
        }
        match &self.lora {
            Some(Lora::Unnamed(id)) => Err(NotIndexable::UnnamedLora { id: *id }),
            Some(Lora::Named(_)) | None => Ok(()),
        }
    }
}
