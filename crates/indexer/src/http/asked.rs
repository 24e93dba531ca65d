//! What is asked: a prompt, by its tokens or by the hashes of its blocks.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{
    BlockHash, BlockSize, HashSeed, Namespace, SequenceHash, Worker, prefix_hashes, sequence_hashes,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, de};

use super::{About, GROUP, Refusal};

/// A query, as it is read.
pub(super) trait Asked: DeserializeOwned + Send {
    /// Of what.
    fn about(&self) -> &About;

    /// The prompt's full blocks in each block size in which there is something to ask.
    fn hashes(&self, workers: &[Worker]) -> Result<Vec<(BlockSize, Vec<SequenceHash>)>, Refusal>;
}

/// `/query`.
#[derive(Debug, Deserialize)]
pub(super) struct ByTokens {
    token_ids: Vec<u32>,
    #[serde(flatten)]
    about: About,
}

/// `/query_by_hash`: either kind of hashes, unsigned or as the signed numbers of the same bits.
#[derive(Debug, Deserialize)]
pub(super) struct ByHashes {
    /// Each of its block alone.
    block_hashes: Option<Vec<Hash>>,
    /// Each of all before it too.
    sequence_hashes: Option<Vec<Hash>>,
    /// Of which blocks, where the model's workers differ.
    block_size: Option<u32>,
    #[serde(flatten)]
    about: About,
}

impl About {
    /// Refuses what nothing here is named.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        match &self.routing_group {
            Some(group) if group != GROUP => {
                Err(Refusal::UnknownGroup(group.chars().take(100).collect()))
            }
            _ => Ok(()),
        }
    }

    fn lora(&self) -> Option<&str> {
        self.lora_name.as_deref().filter(|it| !it.is_empty())
    }

    fn salt(&self) -> Option<&str> {
        self.cache_salt.as_deref().filter(|it| !it.is_empty())
    }

    /// The index of one block size; `workers` serve the model, and there is one.
    pub(super) fn namespace(&self, workers: &[Worker], block_size: BlockSize) -> Namespace {
        Namespace {
            model: workers[0].model.clone(),
            lora: self.lora().map(Arc::from),
            salt: self.salt().map(Arc::from),
            block_size,
        }
    }
}

impl Asked for ByTokens {
    fn about(&self) -> &About {
        &self.about
    }

    fn hashes(&self, workers: &[Worker]) -> Result<Vec<(BlockSize, Vec<SequenceHash>)>, Refusal> {
        let seed = HashSeed::of(self.about.lora(), self.about.salt());
        let of = |size: BlockSize| (size, prefix_hashes(&self.token_ids, size, seed));
        Ok(sizes(workers).into_iter().map(of).collect())
    }
}

impl Asked for ByHashes {
    fn about(&self) -> &About {
        &self.about
    }

    fn hashes(&self, workers: &[Worker]) -> Result<Vec<(BlockSize, Vec<SequenceHash>)>, Refusal> {
        let hashes = match (&self.block_hashes, &self.sequence_hashes) {
            (Some(blocks), None) => {
                let blocks: Vec<_> = blocks.iter().map(|it| BlockHash::new(it.0)).collect();
                sequence_hashes(&blocks)
            }
            (None, Some(hashes)) => hashes.iter().map(|it| SequenceHash::new(it.0)).collect(),
            _ => {
                let why = "send either block_hashes or sequence_hashes";
                return Err(Refusal::Wrong(why.to_owned()));
            }
        };
        Ok(vec![(self.size(workers)?, hashes)])
    }
}

impl ByHashes {
    fn size(&self, workers: &[Worker]) -> Result<BlockSize, Refusal> {
        let sizes = sizes(workers);
        let listed: Vec<String> = sizes.iter().map(|it| it.get().to_string()).collect();
        let listed = listed.join(", ");
        match (self.block_size, sizes.first()) {
            (None, Some(only)) if sizes.len() == 1 => Ok(*only),
            (None, _) => Err(Refusal::Wrong(format!(
                "workers of this model have different block sizes, {listed}: say block_size"
            ))),
            (Some(asked), _) => {
                let found = sizes.iter().find(|it| it.get() == asked).copied();
                let why = || format!("no worker of this model has blocks of {asked}, but {listed}");
                found.ok_or_else(|| Refusal::Wrong(why()))
            }
        }
    }
}

fn sizes(workers: &[Worker]) -> BTreeSet<BlockSize> {
    workers.iter().map(|it| it.block_size).collect()
}

/// 64 bits, written as either kind of number.
#[derive(Clone, Copy, Debug)]
struct Hash(u64);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Hash;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a hash of 64 bits as a whole number")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Hash, E> {
                Ok(Hash(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Hash, E> {
                Ok(Hash(number.cast_unsigned()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
