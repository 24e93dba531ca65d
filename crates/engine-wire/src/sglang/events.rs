//! Batches of events as SGLang 0.5.23 publishes them: like vLLM's, but for signed hashes and fields of its own.

use domain::{DpRank, EngineHash, Tier, Timestamp};

use crate::writer::{Batch, Fields, Writer};
use crate::{Lora, Medium, Removed, Stored};

/// Collects the events of one scheduler step in order and encodes them as one batch.
///
/// What SGLang cannot announce is left out: groups, and tokens that do not describe their content.
#[derive(Debug, Default)]
pub struct BatchEncoder(Batch);

impl BatchEncoder {
    /// A batch without events.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing was added: SGLang publishes no such batch.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds pages that were filled. The salt is written with every store that has one, whatever its parent.
    pub fn stored(&mut self, stored: &Stored) {
        let mut fields = Fields::tagged("BlockStored");
        hashes(fields.add("block_hashes"), &stored.block_hashes);
        match &stored.parent {
            Some(parent) => hash(fields.add("parent_block_hash"), parent),
            None => fields.add("parent_block_hash").nil(),
        }
        let tokens = fields.add("token_ids");
        tokens.array(stored.token_ids.len());
        for token in &stored.token_ids {
            tokens.unsigned((*token).into());
        }
        fields.add("block_size").unsigned(stored.block_size.into());
        fields.add("lora_id").nil();
        fields.add("medium").text(medium(&stored.medium));
        if let Some(salt) = &stored.salt {
            fields.add("cache_salt").text(salt);
        }
        if let Some(session) = &stored.session {
            fields.add("session_id").text(session);
        }
        if let Some(Lora::Named(name)) = &stored.lora {
            fields.add("lora_name").text(name);
        }
        self.0.push(&fields);
    }

    /// Adds pages that left a tier.
    pub fn removed(&mut self, removed: &Removed) {
        let mut fields = Fields::tagged("BlockRemoved");
        hashes(fields.add("block_hashes"), &removed.block_hashes);
        fields.add("medium").text(medium(&removed.medium));
        self.0.push(&fields);
    }

    /// Adds that the rank holds nothing any more.
    pub fn cleared(&mut self) {
        self.0.push(&Fields::tagged("AllBlocksCleared"));
    }

    /// The payload as `dp_rank` publishes it at `ts`.
    pub fn finish(self, ts: Timestamp, dp_rank: DpRank) -> Vec<u8> {
        self.0.finish(ts, dp_rank)
    }
}

fn medium(medium: &Medium) -> &str {
    match medium {
        Medium::Tier(Tier::Gpu) => "GPU",
        Medium::Tier(Tier::Host) => "CPU_PINNED",
        Medium::Tier(Tier::Disk) => "DISK",
        Medium::Remote => "EXTERNAL",
        Medium::Unknown(name) => name,
    }
}

fn hashes(writer: &mut Writer, all: &[EngineHash]) {
    writer.array(all.len());
    for one in all {
        hash(writer, one);
    }
}

/// SGLang's hashes are signed: the same 64 bits, read as such.
fn hash(writer: &mut Writer, hash: &EngineHash) {
    match hash {
        EngineHash::Int(value) => writer.signed(value.cast_signed()),
        EngineHash::Bytes(_) => writer.hash(hash),
    }
}
