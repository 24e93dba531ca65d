//! What an operator may set.

use std::path::PathBuf;
use std::time::Duration;

use contracts::rpc::Shard;
use serde::{Deserialize, Deserializer, de};

/// Settings of the indexer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The folder of its store; created where missing. What lies in it can be rebuilt from the log and the
    /// engines.
    pub data_dir: PathBuf,
    /// Memory that the store's page cache may take, in MiB.
    pub cache_mib: u64,
    /// Which share of the log it follows, as `INDEX/COUNT`; by default all of it, `0/1`.
    #[serde(deserialize_with = "shard")]
    pub shard: Shard,
    /// How long the blocks of a worker are kept after its registration has ended, in seconds.
    pub gone_grace_seconds: u64,
    /// How many distinct blocks that requests carried are remembered, for ceilings.
    pub carried_blocks: usize,
    /// How many distinct blocks that no target holds any more are remembered, for ceilings.
    pub departed_blocks: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("rankway-data/index"),
            cache_mib: 64,
            shard: Shard::WHOLE,
            gone_grace_seconds: 120,
            carried_blocks: 4_000_000,
            departed_blocks: 4_000_000,
        }
    }
}

impl Config {
    pub(crate) fn gone_grace(&self) -> Duration {
        Duration::from_secs(self.gone_grace_seconds)
    }
}

fn shard<'de, D: Deserializer<'de>>(from: D) -> Result<Shard, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(de::Error::custom)
}
