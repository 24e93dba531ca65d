//! Batches of events as vLLM 0.33 publishes them: an array of time, events and rank, each event a map.

use domain::{DpRank, Tier, Timestamp};

use crate::writer::{Batch, Fields, Writer};
use crate::{Lora, Medium, Removed, Stored};

/// What stands for content that tokens do not describe, in the extra keys.
const OPAQUE_IDENTIFIER: &str = "opaque";
/// What stands for such content among the tokens.
const OPAQUE_TOKEN: u32 = 0;

/// Collects the events of one scheduler step in order and encodes them as one batch.
///
/// Only what vLLM can announce can be added, so there is nothing to refuse.
#[derive(Debug, Default)]
pub struct BatchEncoder(Batch);

impl BatchEncoder {
    /// A batch without events.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing was added: vLLM publishes no such batch.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds blocks that were filled. The salt is written where vLLM writes it, with a store that has no
    /// parent.
    pub fn stored(&mut self, stored: &Stored) {
        let mut fields = Fields::tagged("BlockStored");
        fields.add("block_hashes").hashes(&stored.block_hashes);
        match &stored.parent {
            Some(parent) => fields.add("parent_block_hash").hash(parent),
            None => fields.add("parent_block_hash").nil(),
        }
        write_tokens(fields.add("token_ids"), stored);
        fields.add("block_size").unsigned(stored.block_size.into());
        match stored.lora {
            Some(Lora::Unnamed(id)) => fields.add("lora_id").signed(id),
            Some(Lora::Named(_)) | None => fields.add("lora_id").nil(),
        }
        fields.add("medium").text(medium(&stored.medium));
        match &stored.lora {
            Some(Lora::Named(name)) => fields.add("lora_name").text(name),
            Some(Lora::Unnamed(_)) | None => fields.add("lora_name").nil(),
        }
        if !stored.token_ids.is_empty() || stored.opaque_tokens > 0 {
            write_extra_keys(fields.add("extra_keys"), stored);
        }
        if let Some(group) = stored.group {
            fields.add("group_idx").unsigned(group.into());
        }
        if let Some(kind) = &stored.spec_kind {
            fields.add("kv_cache_spec_kind").text(kind.name());
        }
        add_locality(&mut fields, &stored.medium);
        if let Some(session) = &stored.session {
            fields.add("session_id").text(session);
        }
        self.0.push_wide(&fields);
    }

    /// Adds one copy of each block that left a place.
    pub fn removed(&mut self, removed: &Removed) {
        let mut fields = Fields::tagged("BlockRemoved");
        fields.add("block_hashes").hashes(&removed.block_hashes);
        fields.add("medium").text(medium(&removed.medium));
        if let Some(group) = removed.group {
            fields.add("group_idx").unsigned(group.into());
        }
        add_locality(&mut fields, &removed.medium);
        self.0.push(&fields);
    }

    /// Adds that the rank holds nothing any more.
    pub fn cleared(&mut self) {
        let fields = Fields::tagged("AllBlocksCleared");
        self.0.push(&fields);
    }

    /// The payload as `dp_rank` publishes it at `ts`.
    pub fn finish(self, ts: Timestamp, dp_rank: DpRank) -> Vec<u8> {
        self.0.finish(ts, dp_rank)
    }
}

fn medium(medium: &Medium) -> &str {
    match medium {
        Medium::Tier(Tier::Gpu) | Medium::Remote => "GPU",
        Medium::Tier(Tier::Host) => "CPU",
        Medium::Tier(Tier::Disk) => "STORAGE",
        Medium::Unknown(name) => name,
    }
}

fn add_locality(fields: &mut Fields, medium: &Medium) {
    if *medium == Medium::Remote {
        fields.add("locality").text("REMOTE");
    }
}

fn write_tokens(writer: &mut Writer, stored: &Stored) {
    writer.array(stored.token_ids.len() + stored.opaque_tokens);
    let opaque = std::iter::repeat_n(&OPAQUE_TOKEN, stored.opaque_tokens);
    for token in stored.token_ids.iter().chain(opaque) {
        writer.unsigned((*token).into());
    }
}

/// For each block the adapter's name, then a mark where the content is opaque, then the salt where a
/// sequence begins; nil where there is nothing to say.
fn write_extra_keys(writer: &mut Writer, stored: &Stored) {
    let lora = match &stored.lora {
        Some(Lora::Named(name)) => Some(name.as_ref()),
        Some(Lora::Unnamed(_)) | None => None,
    };
    let described = if stored.opaque_tokens == 0 {
        stored.block_hashes.len()
    } else {
        let blocks = stored
            .token_ids
            .len()
            .checked_div(stored.block_size as usize);
        blocks.unwrap_or(0)
    };
    writer.array(stored.block_hashes.len());
    for block in 0..stored.block_hashes.len() {
        let begins = block == 0 && stored.parent.is_none();
        let salt = stored.salt.as_deref().filter(|_| begins);
        let opaque = block >= described;
        let keys = usize::from(lora.is_some()) + usize::from(opaque) + usize::from(salt.is_some());
        if keys == 0 {
            writer.nil();
            continue;
        }
        writer.array(keys);
        if let Some(lora) = lora {
            writer.text(lora);
        }
        if opaque {
            writer.array(2);
            writer.text(OPAQUE_IDENTIFIER);
            writer.unsigned(0);
        }
        if let Some(salt) = salt {
            writer.text(salt);
        }
    }
}
